"""Rotations of images and of long sequences, in addition to their formulas."""

import pytest
import torch
from support.pairwise_scores import products, random_encoding, rotated
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.encodings import Context, build_encoding
from fairseq_lrpe.ops.position_index import coordinates, diagonal_position_index, grid_position_index

H, D, M, ROWS, COLUMNS = 2, 8, 12, 3, 4
GRID = grid_position_index(ROWS, COLUMNS)
CASES = [
    ("rope_mixed", {}),
    ("axial_rope", {}),
    ("liere", {}),
    ("liere", {"block_size": 4}),
    ("liere", {"block_size": 2}),
]
every = pytest.mark.parametrize("name, options", CASES, ids=str)


def build(name, axes=2, **options):
    shared = {"num_heads": H, "head_dim": D, "causal": False, "max_positions": M, "axes": axes}
    return build_encoding(name, **shared, **options).double()


def rope_mixed(encoding, position, x, h):
    """Multiplies x_2t + i x_2t+1 by exp(i Σ_a p_a θ_at)."""
    return rotated(x, sum(p * encoding.theta[a, h] for a, p in enumerate(position)))


def axial_rope(encoding, position, x, h):
    """Rotates pairs by the last coordinate, then by the one before it."""
    pairs = D // (2 * len(position))
    theta = encoding.base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return rotated(x, torch.cat([p * theta for p in reversed(position)]))


def liere(encoding, position, x, h):
    """Multiplies each block of x by exp(Σ_a p_a A_a / (M − 1))."""
    size, blocks = encoding.block_size, []
    places = tuple(torch.triu_indices(size, size, 1))
    for n, block in enumerate(x.split(size, dim=1)):
        upper = sum(p * encoding.generators[a, h, n] for a, p in enumerate(position)) / (M - 1)
        matrix = torch.zeros(size, size, dtype=torch.float64).index_put(places, upper)
        blocks.append(block @ torch.matrix_exp(matrix - matrix.T).T)
    return torch.cat(blocks, dim=-1)


ROTATIONS = {"rope_mixed": rope_mixed, "axial_rope": axial_rope, "liere": liere}


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


def test_diagonal_position_index():
    positions = diagonal_position_index(3, 4)
    assert positions.query_positions.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]
    assert positions.max_position == 5
    some = positions.block(2, 3)
    assert some.query_positions.tolist() == [2, 3, 1] and some.key_positions.equal(positions.key_positions)
    assert positions.block(2, 3, 5).key_positions.equal(positions.key_positions[:5])
    assert some.distance_index()[1].tolist() == [5 - 3 + j for j in positions.key_positions.tolist()]


@pytest.mark.parametrize("name, what", [("rope_values", "values"), ("fope", "keys"), ("conv_spe", "keys")])
def test_what_cannot_be_shifted(name, what):
    with pytest.raises(ValueError, match=f"{name} cannot shift the positions of encoded {what}"):
        getattr(random_encoding(name), f"shift_{what}")(randn(1, 2, 3, 4), 1)
