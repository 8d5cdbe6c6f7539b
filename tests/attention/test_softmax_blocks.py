"""Softmax attention with a bias in blocks of queries."""

import pytest
import torch
from support.tensor_sizes import TensorSizes
from support.tensors import assert_same, randn, randomized, with_gradients

from fairseq_lrpe.attention import softmax
from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.encodings import build_encoding

H, D, B, L = 1, 4, 2, 1100
OPTIONS = {
    "t5": {},
    "shaw_values": {"k": 5, "values": True},
    "xl": {},
    "deberta": {"k": 40},
    "huang_3": {"k": 5, "method": 3},
    "huang_4": {"k": 5, "method": 4},
    "per": {},
    "xpos": {},
    "cope": {"positions": 20},
    "path": {},
}
CAUSAL_ONLY = ("per", "xpos", "cope", "path")  # or without scores of its own otherwise


def build(name, causal, dropout=0.0):
    shared = {"num_heads": H, "head_dim": D, "causal": causal, "layer": 3}
    encoding = build_encoding(name.partition("_")[0], **shared, **OPTIONS[name])
    return randomized(FairseqSoftmaxAttention(encoding, dropout=dropout)).double()


@pytest.fixture
def rows(monkeypatch):
    """Returns a function that sets blocks of n queries, or of all, and returns the blocks computed since."""

    def rows(module, n):
        seen = []

        def counted(q, k, v, context):
            seen.append((context.q_offset, q.size(2), k.size(2)))
            return FairseqSoftmaxAttention._attend_block(module, q, k, v, context)

        monkeypatch.setattr(module, "_attend_block", counted)
        monkeypatch.setattr(softmax, "_CAUSAL_BLOCK_SIZE", 2**40)
        monkeypatch.setattr(softmax, "_MAX_BIAS_ELEMENTS", 2**40 if n is None else n * B * H * L)
        return seen

    return rows


def results(module, length, *padded):
    """Returns the output that is not padding, and all gradients; ``padded`` is indices of padding."""
    x, padding = randn(length, B, H * D).requires_grad_(), torch.zeros(B, length, dtype=torch.bool)
    for index in padded:
        padding[index] = True
    out, _ = module(x, key_padding_mask=padding if padded else None)
    return with_gradients(out[~padding.T], [x, *module.parameters()])


CASES = [(name, True, name not in ("t5", "deberta")) for name in OPTIONS]
CASES += [(name, False, True) for name in OPTIONS if name not in CAUSAL_ONLY]


@pytest.mark.parametrize("name, causal, padded", CASES)
def test_blocks_of_queries_match_full_sequence(rows, name, causal, padded):
    module, padding = build(name, causal), [(0, slice(700, L)), (1, 300)] * padded
    seen = rows(module, None)
    whole = results(module, L, *padding)
    assert set(seen) == {(0, L, L)}
    seen = rows(module, 250)
    assert_same(results(module, L, *padding), whole)
    expected = [(s, min(250, L - s), min(L, s + 250) if causal else L) for s in range(0, L, 250)]
    assert sorted(set(seen)) == expected and sorted(seen[:5]) == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_short_causal_sequences_use_blocks_without_recomputation(rows, monkeypatch, name):
    module, padding = build(name, True), (1, slice(40, 50))
    seen = rows(module, None)
    whole = results(module, 50, padding)
    monkeypatch.setattr(softmax, "_CAUSAL_BLOCK_SIZE", 16)
    seen.clear()
    assert_same(results(module, 50, padding), whole)
    assert sorted(seen) == [(0, 17, 17), (17, 17, 34), (34, 16, 50)]


@pytest.mark.parametrize("name, length", [("per", L), ("t5", 1024), ("shaw_values", 1024)])
def test_one_block(rows, name, length):
    module = build(name, False)
    seen = rows(module, 1)
    module(randn(length, B, H * D))
    assert seen == [(0, length, length)]


@pytest.mark.parametrize("name", OPTIONS)
def test_empty_batch(name):
    x = torch.zeros(L, 0, H * D, dtype=torch.float64)
    assert build(name, name in CAUSAL_ONLY)(x)[0].shape == x.shape


@pytest.mark.parametrize("name, causal", [("t5", True), ("shaw_values", False), ("per", True)])
def test_backward_uses_the_same_dropout_mask(rows, name, causal):
    """With a fixed mask the output is linear in the value projection: a step adds gradient · step."""
    module = build(name, causal, dropout=0.3)
    rows(module, 250)
    x, w, weight = randn(L, B, H * D), randn(L, B, H * D, seed=1), module.v_proj.weight

    def loss(seed=7):
        torch.manual_seed(seed)
        return (module(x)[0] * w).sum()

    first = loss()
    assert first.equal(loss())
    (gradient,) = torch.autograd.grad(first, weight)
    step = torch.randn_like(weight)
    with torch.no_grad():
        weight += step
        moved = loss()
    assert_same((moved - first.detach()) / 100, (gradient * step).sum() / 100)
    assert not torch.allclose(loss(8), moved)
    module.eval()
    assert module(x)[0].equal(module(x)[0])


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("cope", "path")])
def test_memory_is_bounded_by_a_block(rows, name):
    module = build(name, name in CAUSAL_ONLY)
    rows(module, 50)
    with TensorSizes() as sizes:
        module(randn(L, B, H * D))[0].sum().backward()
    assert sizes.largest <= 2.5 * 50 * B * H * L
