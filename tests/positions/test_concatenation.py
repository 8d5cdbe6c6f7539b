"""Compares concatenation with a loop over its definition; tests its initialization."""

import math

import pytest
import torch

from fairseq_lrpe.positions import build_position

E, V = 6, 11


def build(width=E):
    return build_position("concatenation", embed_dim=width, vocab_size=V).double()


def sinusoid(k, width):
    """Returns the interleaved sines and cosines of position k."""
    angles = (k / 10000 ** (2 * t / width) for t in range(width // 2))
    return torch.tensor([f(a) for a in angles for f in (math.sin, math.cos)], dtype=torch.float64)


@pytest.mark.parametrize("positions", [[[0, 1, 2], [3, 3, 0]], [[70, 500, 9_000], [1, 0, 64]]])
def test_matches_definition(positions):
    module = build()
    with torch.no_grad():
        module.weight.normal_()
    x = torch.randn(2, 3, E, dtype=torch.float64, requires_grad=True)
    rows = []
    for b, row in enumerate(positions):
        for i, k in enumerate(row):
            both = [*x[b, i], *sinusoid(k, E)]
            rows += [sum(both[j] * module.weight[j, e] for j in range(2 * E)) for e in range(E)]
    out = module(x, torch.tensor(positions), torch.full((2, 3), 3))
    mixed = torch.randn(2, 3, E, dtype=torch.float64)
    results = []
    for y in (out, torch.stack(rows).view(2, 3, E)):
        results.append((y, *torch.autograd.grad((y * mixed).sum(), (x, module.weight))))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_initially_adds_sinusoids():
    x = torch.randn(1, 2, E, dtype=torch.float64)
    out = build()(x, torch.tensor([[0, 41]]), torch.full((1, 2), 3))
    expected = x + torch.stack([sinusoid(0, E), sinusoid(41, E)])
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-14)


def test_autocast_keeps_the_dtype_of_the_embeddings():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = build().float()(torch.randn(1, 2, E), torch.tensor([[0, 1]]), torch.full((1, 2), 3))
    assert out.dtype == torch.float32


def test_odd_width_is_rejected():
    with pytest.raises(ValueError, match=r"^concatenation needs an even embedding dimension, not 7$"):
        build(7)
