"""Compares RoPE-Mixed and LieRE with their formulas, for sequences and for images."""

import math

import pytest
import torch
from pairwise_scores import pairwise_matrix, products
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.ops.position_index import coordinates, grid_position_index

H, D, M, ROWS, COLUMNS = 2, 8, 12, 3, 4
GRID = grid_position_index(ROWS, COLUMNS)
CASES = [("rope_mixed", {}), ("liere", {}), ("liere", {"block_size": 4}), ("liere", {"block_size": 2})]
every = pytest.mark.parametrize(
    "name, options", CASES, ids=lambda x: x if isinstance(x, str) else "".join(map(str, x.values()))
)


def build(name, axes=2, d=D, heads=H, **options):
    torch.manual_seed(0)
    shared = {"num_heads": heads, "head_dim": d, "causal": False, "max_positions": M, "axes": axes}
    return build_encoding(name, **shared, **options).double()


def rope_mixed(encoding, position, x, h):
    """Multiplies x_2t + i x_2t+1 by exp(i Σ_a p_a θ_at)."""
    out = []
    for t in range(D // 2):
        angle = sum(p * encoding.theta[a, h, t] for a, p in enumerate(position))
        a, b = x[:, 2 * t], x[:, 2 * t + 1]
        out += [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.stack(out, dim=-1)


def liere(encoding, position, x, h):
    """Multiplies each block of x by exp(Σ_a p_a A_a / (M − 1)), a power series in the quotient by 2^12."""
    size, blocks = encoding.block_size, []
    for n in range(D // size):
        matrix = torch.zeros(size, size, dtype=torch.float64)
        for a, p in enumerate(position):
            entries = iter(encoding.generators[a, h, n])
            for i in range(size):
                for j in range(i + 1, size):
                    entry, unit = next(entries), torch.zeros(size, size, dtype=torch.float64)
                    unit[i, j], unit[j, i] = 1, -1
                    matrix = matrix + entry * unit * p / (M - 1)
        matrix = matrix / 2**12
        power = rotation = torch.eye(size, dtype=torch.float64)
        for order in range(1, 9):
            power = power @ matrix / order
            rotation = rotation + power
        blocks.append(x[:, n * size : (n + 1) * size] @ torch.linalg.matrix_power(rotation, 2**12).T)
    return torch.cat(blocks, dim=-1)


ROTATIONS = {"rope_mixed": rope_mixed, "liere": liere}


def check(encoding, queries, keys, q_offset, k_offset, position_of, tolerance):
    """Compares products and their gradients with those of ``ROTATIONS``, pair by pair."""
    rotate = ROTATIONS[encoding.name]

    def score(encoding, q, k, i, j, h):
        q, k = rotate(encoding, position_of(i, 0), q, h), rotate(encoding, position_of(j, 1), k, h)
        return (q * k).sum(-1)

    leaves = [randn(2, H, n, D, seed=n).requires_grad_() for n in (queries, keys)] + [*encoding.parameters()]
    results = []
    for out in (
        products(encoding, *leaves[:2], q_offset, k_offset),
        pairwise_matrix(score, encoding, *leaves[:2], causal=False),
    ):
        results.append((out, *torch.autograd.grad((out * randn(*out.shape, seed=3)).sum(), leaves)))
    assert_same(*results, tolerance)


@every
def test_images_match_formula(name, options):
    grid = [divmod(i, COLUMNS) for i in range(ROWS * COLUMNS)]
    size = len(grid)
    check(build(name, **options), size, size, GRID, GRID, lambda i, _: grid[i], 1e-9)


@every
@pytest.mark.parametrize("offsets", [(0, 0), (7, 2), (0, 30)])
def test_sequences_match_formula(name, options, offsets):
    check(build(name, axes=1, **options), 3, 4, *offsets, lambda i, k: (i + offsets[k],), 1e-9)


@every
@torch.no_grad()
def test_long_sequences(name, options):
    """LieRE multiplies the rotations of blocks of 64 positions."""
    encoding, x = build(name, axes=1, **options), randn(1, H, 200, D)
    for offset in (0, 50, 64):
        whole, _ = encoding(x, x, offset, offset)
        for i in (0, 13, 14, 63, 64, 199):
            expected = ROTATIONS[name](encoding, (offset + i,), x[0, :, i], 0)[:1]
            assert_same(whole[0, :1, i], expected, 1e-9)
    back = encoding.shift_keys(encoding(x, x, 40, 40)[1], 40)
    assert_same(back, encoding(x, x)[1], 1e-9)


def translation_error(encoding):
    """Returns the largest difference between scores in a grid and in the same grid moved by (2, 5)."""
    x, y = randn(1, H, ROWS * COLUMNS, D, seed=1), randn(1, H, ROWS * COLUMNS, D, seed=2)
    index = GRID.query_positions + torch.tensor([2, 5])
    moved = GRID._replace(query_positions=index, key_positions=index, max_position=9)
    return (products(encoding, x, y, GRID, GRID) - products(encoding, x, y, moved, moved)).abs().max()


@torch.no_grad()
def test_relative_positions_in_images():
    assert translation_error(build("rope_mixed")) < 1e-12
    assert translation_error(build("liere", block_size=2)) < 1e-12
    assert translation_error(build("liere")) > 0.1  # its generators do not commute


@torch.no_grad()
def test_liere_with_blocks_of_two_features_is_rope_mixed():
    blocks, mixed = build("liere", block_size=2), build("rope_mixed")
    mixed.theta.copy_(-blocks.generators[..., 0] / (M - 1))
    x, y = randn(1, H, ROWS * COLUMNS, D, seed=1), randn(1, H, ROWS * COLUMNS, D, seed=2)
    assert_same(blocks(x, y, GRID, GRID), mixed(x, y, GRID, GRID), 1e-12)


def test_initialization():
    theta = build("rope_mixed", heads=100, d=16).theta
    assert theta.shape == (2, 100, 8)
    size = torch.tensor([10 ** (-4 * m / 16) for m in range(4)], dtype=torch.float64)
    assert_same(theta.square().sum(0).sqrt(), size.repeat(2).expand(100, -1), 1e-6)
    first, second = theta[..., :4] / size, theta[..., 4:] / size
    assert_same(second, torch.stack([-first[1], first[0]]), 1e-6)  # 90 degrees later
    assert_same(first, first[..., :1].expand(-1, -1, 4), 1e-6)
    assert theta[0, :, 0].std() > 0.5
    generators = build("liere", heads=100).generators
    assert generators.shape == (2, 100, 1, D * (D - 1) // 2)
    assert 0 <= generators.min() < 0.1 and 6.2 < generators.max() < 2 * math.pi


@torch.no_grad()
def test_rope_mixed_of_a_sequence_starts_as_rope():
    x = randn(1, H, 5, D)
    mixed, rope = build("rope_mixed", axes=1), build("rope", axes=1)
    assert_same(mixed(x, x, 3, 9), rope(x, x, 3, 9), 1e-6)


def test_size_of_lieres_gradient():
    """The gradient of the generators is exactly proportional to the incoming gradient."""
    gradients = []
    for scale in (1.0, 1e12):
        encoding, x = build("liere"), randn(1, H, ROWS * COLUMNS, D)
        loss = scale * (encoding(x, x, GRID, GRID)[0] * randn(*x.shape, seed=2)).sum()
        gradients.append(torch.autograd.grad(loss, encoding.generators)[0] / scale)
    assert_same(*gradients, 1e-12)


def test_coordinates():
    device = torch.device("cpu")
    assert coordinates(3, 2, device).tolist() == [[3], [4]]
    assert coordinates(GRID, 12, device).tolist() == [[r, c] for r in range(ROWS) for c in range(COLUMNS)]
    assert coordinates(GRID.slice_queries(3, 2), 2, device).tolist() == [[0, 3], [1, 0]]


@pytest.mark.parametrize(("name", "options", "message"), [
    ("rope", {}, "rope does not support positions with 2 coordinates: use liere or rope_mixed, or pass"),
    ("rope_mixed", {"d": 6}, "must be a multiple of 4 in an image, not 6"),
    ("rope_mixed", {"d": 7, "axes": 1}, "must be a multiple of 2 in a sequence, not 7"),
    ("liere", {"block_size": 3}, "liere needs a block size of at least 2 that divides head_dim 8, not 3"),
    ("liere", {"block_size": 1}, "liere needs a block size of at least 2 that divides head_dim 8, not 1"),
    ("liere", {"block_size": -2}, "liere needs a block size of at least 2 that divides head_dim 8, not -2"),
])  # fmt: skip
def test_invalid_arguments_are_rejected(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)
