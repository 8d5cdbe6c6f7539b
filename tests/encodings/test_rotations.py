"""Rotations of images, of values, and of long sequences, in addition to their formulas."""

import math

import pytest
import torch
from support.pairwise_scores import products, random_encoding
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import Context, build_encoding
from fairseq_lrpe.ops.position_index import coordinates, grid_position_index

H, D, M, ROWS, COLUMNS = 2, 8, 12, 3, 4
GRID = grid_position_index(ROWS, COLUMNS)
CASES = [("rope_mixed", {}), ("liere", {}), ("liere", {"block_size": 4}), ("liere", {"block_size": 2})]
every = pytest.mark.parametrize("name, options", CASES, ids=str)


def build(name, axes=2, **options):
    shared = {"num_heads": H, "head_dim": D, "causal": False, "max_positions": M, "axes": axes}
    return build_encoding(name, **shared, **options).double()


def rotated(x, offset):
    """Multiplies the pair (x_2t, x_2t+1) at position s, as a complex number, by e^{is·10000^(-2t/d)}."""
    length, d = x.shape[-2:]
    s = torch.arange(offset, offset + length, dtype=torch.float64)[:, None]
    angles = s * 10000 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)
    z = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def rope_mixed(encoding, position, x, h):
    """Multiplies x_2t + i x_2t+1 by exp(i Σ_a p_a θ_at)."""
    angles = sum(p * encoding.theta[a, h] for a, p in enumerate(position))
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def liere(encoding, position, x, h):
    """Multiplies each block of x by exp(Σ_a p_a A_a / (M − 1))."""
    size, blocks = encoding.block_size, []
    places = tuple(torch.triu_indices(size, size, 1))
    for n, block in enumerate(x.split(size, dim=1)):
        upper = sum(p * encoding.generators[a, h, n] for a, p in enumerate(position)) / (M - 1)
        matrix = torch.zeros(size, size, dtype=torch.float64).index_put(places, upper)
        blocks.append(block @ torch.matrix_exp(matrix - matrix.T).T)
    return torch.cat(blocks, dim=-1)


ROTATIONS = {"rope_mixed": rope_mixed, "liere": liere}


def encoded(encoding, x):
    rotate, rows = ROTATIONS[encoding.name], range(x.size(2))
    heads = [[rotate(encoding, divmod(i, COLUMNS), x[:, h, i], h) for i in rows] for h in range(H)]
    return torch.stack([torch.stack(head, dim=1) for head in heads], dim=1)


@every
def test_images_match_formula(name, options):
    encoding = build(name, **options)
    q, k = (randn(2, H, ROWS * COLUMNS, D, seed=seed).requires_grad_() for seed in (1, 2))
    leaves = [q, k, *encoding.parameters()]
    found = products(encoding, q, k, GRID, GRID)
    expected = encoded(encoding, q) @ encoded(encoding, k).mT
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves), 1e-9)


@every
@torch.no_grad()
def test_long_sequences(name, options):
    """LieRE multiplies the rotations of blocks of 64 positions."""
    encoding, x = build(name, axes=1, **options), randn(1, H, 200, D)
    for offset in (0, 50, 64):
        whole, _ = encoding(x, x, Context(offset, offset))
        for i in (0, 13, 14, 63, 64, 199):
            expected = ROTATIONS[name](encoding, (offset + i,), x[0, :, i], 0)[:1]
            assert_same(whole[0, :1, i], expected, 1e-9)
    back = encoding.shift_keys(encoding(x, x, Context(40, 40))[1], 40)
    assert_same(back, encoding(x, x)[1], 1e-9)


def test_size_of_lieres_gradient():
    encoding, x, gradients = build("liere"), randn(1, H, ROWS * COLUMNS, D), []
    for scale in (1.0, 1e12):
        loss = scale * (encoding(x, x, Context(GRID, GRID))[0] * randn(*x.shape, seed=2)).sum()
        gradients.append(torch.autograd.grad(loss, encoding.generators)[0] / scale)
    assert_same(*gradients, 1e-12)


def test_coordinates():
    device = torch.device("cpu")
    assert coordinates(3, 2, device).tolist() == [[3], [4]]
    assert coordinates(GRID, 12, device).tolist() == [[r, c] for r in range(ROWS) for c in range(COLUMNS)]
    assert coordinates(GRID.block(3, 2), 2, device).tolist() == [[0, 3], [1, 0]]


# Rotated values.


@pytest.mark.parametrize("attention", [LinearAttention, SoftmaxAttention])
@pytest.mark.parametrize("name", ["rope_values", "roper"])
def test_values_match_definition(name, attention):
    """o_i = Σ_j a_ij RoPE(v_j, j), rotated back by i for ``roper``, with the weights a of RoPE."""
    module = attention(2 * D, 2, name, causal=True).double()
    x = randn(2, 5, 2 * D).requires_grad_()
    q, k, v = (module.split_heads(p(x)) for p in (module.q_proj, module.k_proj, module.v_proj))
    unseen = torch.ones(5, 5, dtype=torch.bool).triu(1)
    if attention is LinearAttention:
        q, k = (rotated(1 + torch.nn.functional.elu(y), 0) for y in (q, k))
        weights = (q @ k.mT).masked_fill(unseen, 0)
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    else:
        scores = rotated(q, 0) @ rotated(k, 0).mT / math.sqrt(D)
        weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    o = weights @ rotated(v, 0)
    if name == "roper":
        o = torch.cat([rotated(o[:, :, i : i + 1], -i) for i in range(5)], dim=2)
    leaves = [x, *module.parameters()]
    expected = with_gradients(module.out_proj(module.merge_heads(o)), leaves)
    assert_same(with_gradients(module(x), leaves), expected)


def test_fope_checkpoint_stores_the_series():
    trained, longer = (random_encoding("fope", max_positions=n, head_dim=64) for n in (64, 512))
    longer.load_state_dict(trained.state_dict())
    x = randn(1, 2, 9, 64)
    assert trained(x, x)[0].equal(longer(x, x)[0])


def test_what_cannot_be_shifted():
    with pytest.raises(ValueError, match="rope_values cannot shift the positions of encoded values"):
        random_encoding("rope_values").shift_values(randn(1, 2, 3, 4), 1)
    with pytest.raises(ValueError, match="fope cannot shift the positions of encoded keys"):
        random_encoding("fope").shift_keys(randn(1, 2, 3, 4), 1)
    with pytest.raises(ValueError, match="conv_spe cannot shift the positions of encoded keys"):
        random_encoding("conv_spe").shift_keys(randn(1, 2, 3, 4), 1)
