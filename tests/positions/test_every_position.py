"""Properties of every absolute position embedding, and their registry."""

import copy
import itertools

import pytest
import torch

from fairseq_lrpe.positions import POSITIONS, build_position

E, V, M = 6, 11, 32
NAMES = ("multiplicative", "recurrent", "floater", "floater_every_layer", "complex_order", "hierarchical")
NAMES += ("convolution", "concatenation", "rnn", "cape")
CASES = (*NAMES, "causal convolution", "causal rnn")
PRODUCTS = ("concatenation", "rnn")
"""Positions with matrix products of the embeddings, whose rounding depends on the number of rows."""
PAD = 1


def build(case, **options):
    *causal, name = case.split()
    options |= {"embed_dim": E, "vocab_size": V, "max_positions": M, "causal": bool(causal)}
    return build_position(name, **options).double().eval()  # in training, some are random


def batch(positions, seed=0):
    g = torch.Generator().manual_seed(seed)
    positions = torch.tensor(positions)
    x = torch.randn(*positions.shape, E, generator=g, dtype=torch.float64)
    return x, positions, torch.randint(2, V, positions.shape, generator=g)


def row_alone(module, i, *given):
    start, end = max(0, i - module.left_context), min(given[0].size(1), i + module.right_context + 1)
    return module(*(rows[:, start:end] for rows in given))[:, i - start]


def assert_same(case, actual, expected):
    tolerance = 0 if case.split()[-1] not in PRODUCTS else 1e-6 if actual.dtype == torch.float32 else 1e-14
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


every_case = pytest.mark.parametrize("case", CASES)


def test_registry():
    assert {name: cls.name for name, cls in POSITIONS.items()} == dict(zip(NAMES, NAMES, strict=True))
    with pytest.raises(ValueError, match=r"'magic'.*complex_order.*floater"):
        build_position("magic", embed_dim=E, vocab_size=V)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@every_case
def test_single_tokens_match_full_sequence(case, dtype):
    module = build(case).to(dtype)
    x, positions, tokens = batch([list(range(M)), list(range(M))])
    x = x.to(dtype)
    whole = module(x, positions, tokens)
    with torch.no_grad():
        steps = [row_alone(module, i, x, positions, tokens) for i in range(M)]
        assert whole.equal(module(x, positions, tokens))
    assert_same(case, torch.stack(steps, dim=1), whole)
    assert whole.dtype == dtype
    assert module.float()(x.bfloat16(), positions, tokens).dtype == torch.bfloat16


@every_case
def test_positions_in_any_order_with_repeats(case):
    module, rows = build(case), torch.randint(M, (3, 5)).tolist()
    x, positions, tokens = batch([*rows, [3, 3, 0, M - 1, 0]])
    out = module(x, positions, tokens)
    for b, i in itertools.product(range(4), range(5)):
        alone = row_alone(module, i, x[b : b + 1], positions[b : b + 1], tokens[b : b + 1])
        assert_same(case, out[b, i], alone[0])


@every_case
def test_initial_positions_differ(case):
    """If the module depends on neighbours: positions near a border, and one inside."""
    module = build(case)
    x, positions, tokens = batch([list(range(M))])
    out = module(x[:, :1].expand(1, M, E), positions, tokens[:, :1].expand(1, M))[0]
    before, after = (min(context, 3) for context in (module.left_context, module.right_context))
    differ = [*range(before + 1), *range(M - after, M)] if before + after else range(M)
    distance = (out[differ, None] - out[differ]).norm(dim=-1) + torch.eye(len(differ))
    assert distance.min() > 1e-4
    assert out.abs().max() < 10


@every_case
@pytest.mark.parametrize("pad", [0, PAD])
def test_padding_anywhere_is_finite(case, pad):
    module = build(case, padding_idx=pad)
    x, positions, tokens = batch([[3, 4, 5, 6]])
    x.requires_grad_()
    words, expected = module(x, positions, tokens), module(x[:, 2:], positions[:, 2:], tokens[:, 2:])
    tokens[0, :2] = pad
    positions[0, :2] = torch.tensor([-1, 10**9])
    out = module(x, positions, tokens)
    assert out.isfinite().all() and not out[0, :2].equal(words[0, :2])
    assert_same(case, out[:, 2:], expected)
    negative = torch.full_like(positions, -5)
    assert module(x, negative, tokens).equal(module(x, 0 * positions, tokens))
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_causal_positions_ignore_later_tokens(name):
    causal = build(f"causal {name}")
    x, positions, tokens = batch([list(range(M))])
    changed = x.clone()
    changed[:, 20] += 1
    out, other = causal(x, positions, tokens), causal(changed, positions, tokens)
    assert causal.right_context == 0
    assert out[:, :20].equal(other[:, :20]) and not out[:, 20].equal(other[:, 20])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_case
def test_far_positions_in_half_precision(case, dtype):
    """Parameters that are multiplied by positions keep their precision: see ``float32_parameters``."""
    module = build(case).float()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1 + 0.01 * torch.randn_like(parameter))
    limits = {"multiplicative": M, "hierarchical": M * M, "floater": 1001, "floater_every_layer": 1001}
    limit = limits.get(case, 10_001)
    x, positions, tokens = batch([[min(position, limit - 1) for position in (100, 1000, 10_000)]])
    x = x.to(dtype)
    half, exact = copy.deepcopy(module).to(dtype), copy.deepcopy(module).double()
    with torch.no_grad():
        found, expected = half(x, positions, tokens), exact(x.double(), positions, tokens)
        plain = module(x.float(), positions, tokens)
        with torch.autocast("cpu", dtype):
            out = module(x.float(), positions, tokens)
        assert out.dtype == torch.float32 and (case.split()[-1] in PRODUCTS or out.equal(plain))
    assert found.dtype == dtype
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(dtype).eps


@every_case
@pytest.mark.parametrize("rows", [torch.zeros(0, 5), torch.zeros(2, 0)], ids=["batch", "length"])
def test_empty_inputs(case, rows):
    module, rows = build(case), rows.long()
    x = torch.zeros(*rows.shape, module.width, dtype=torch.float64, requires_grad=True)
    out = module(x, rows, rows + PAD + 1)
    out.sum().backward()
    assert out.shape == x.grad.shape == x.shape
