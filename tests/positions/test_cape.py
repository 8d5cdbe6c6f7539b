"""CAPE: its definition for given random numbers, and their distribution."""

import math

import pytest
import torch

from fairseq_lrpe.positions import build_position

E, V = 6, 11


def build(width=E):
    return build_position("cape", embed_dim=width, vocab_size=V).double()


def sinusoids(places, width):
    """Returns the interleaved sines and cosines of places (B, L), with a loop."""
    rows = []
    for place in places.flatten().tolist():
        angles = (place / 10000 ** (2 * t / width) for t in range(width // 2))
        rows.append([f(a) for a in angles for f in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.float64).view(*places.shape, width)


def test_evaluation_adds_sinusoids():
    module, x = build().eval(), torch.randn(2, 3, E, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([[0, 1, 2], [40_003, 7, 7]])
    out = module(x, positions, torch.full((2, 3), 3))
    torch.testing.assert_close(out, x + sinusoids(positions, E), rtol=0, atol=1e-10)
    assert torch.autograd.grad(out.sum(), x)[0].eq(1).all()


def test_training_matches_definition(monkeypatch):
    """The random numbers are the maxima in the first row, and minus half of them in the second."""

    def constants(x, low, high):
        assert low == -high
        return x.fill_(high) * torch.tensor([[1], [-0.5]])

    monkeypatch.setattr(torch.Tensor, "uniform_", constants)
    positions = torch.tensor([[0, 1, 2], [9, 4, 4]]).double()
    zeros = torch.zeros(2, 3, E, dtype=torch.float64)
    out = build()(zeros, positions, torch.full((2, 3), 3))
    first, second = 1.03 * (positions[:1] + 5.5), 1.03**-0.5 * (positions[1:] - 2.75)
    torch.testing.assert_close(out, sinusoids(torch.cat([first, second]), E), rtol=0, atol=1e-10)


def places(rows, length):
    """Returns the augmented positions (B, L) of a batch, from the lowest frequency of a wide embedding."""
    width, positions = 512, torch.arange(length).expand(rows, length)
    zeros, tokens = torch.zeros(rows, length, width, dtype=torch.float64), torch.full((rows, length), 3)
    out = build(width)(zeros, positions, tokens)
    return out[..., -2].asin() * 10000 ** (2 * (width // 2 - 1) / width)


def test_distribution_in_training():
    found = places(rows=1000, length=11)
    steps = found.diff(dim=1)
    assert steps.min() > 0 and steps.max() < 1.03 * 2  # the order of positions is preserved
    scale = (found[:, 10] - found[:, 0]) / 10  # the local shifts change it by up to 1.03 / 10
    assert scale.min() > 1 / 1.03 - 0.1 and scale.max() < 1.03 * 1.1
    center = found.mean(1) - 5
    assert abs(center.mean()) < 0.4 and center.abs().max() < 1.03 * 5.5 + 0.15
    assert center.std() == pytest.approx(10 / 12**0.5, rel=0.1)
    local = found - found.mean(1, keepdim=True) - torch.linspace(-5, 5, 11)
    assert local[:, 5].std() == pytest.approx(12**-0.5, rel=0.1)
    assert not found[0].equal(found[1])


def test_every_forward_pass_is_augmented_differently():
    torch.manual_seed(1)
    first, second = places(1, 4), places(1, 4)
    torch.manual_seed(1)
    assert not first.equal(second) and places(1, 4).equal(first)


def test_odd_width_is_rejected():
    with pytest.raises(ValueError, match=r"^cape needs an even embedding dimension, not 7$"):
        build(7)
