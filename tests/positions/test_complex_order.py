"""Compares complex-order embeddings with Python's complex numbers."""

import cmath

import pytest
import torch

from fairseq_lrpe.positions import build_position

E, V, PAD = 6, 11, 1


def build(width=E):
    return build_position("complex_order", embed_dim=width, vocab_size=V)


def with_random_omega(width=E, seed=0):
    module = build(width).double()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        module.omega.weight.copy_(torch.randn(V, width // 2, generator=g, dtype=torch.float64))
    return module


def test_gradients():
    module = with_random_omega()
    positions, tokens = torch.tensor([[0, 1, 2], [7, 7, 3]]), torch.tensor([[2, 5, 2], [5, 10, 3]])
    x = torch.randn(2, 3, E, dtype=torch.float64, requires_grad=True)
    rows = []
    for b in range(2):
        for i in range(3):
            z = torch.complex(x[b, i, : E // 2], x[b, i, E // 2 :])
            turn = torch.exp(1j * module.omega.weight[tokens[b, i]] * positions[b, i])
            rows.append(torch.cat([(z * turn).real, (z * turn).imag]))
    mixed = torch.randn(2, 3, E, dtype=torch.float64)
    results = []
    for y in (module(x, positions, tokens), torch.stack(rows).view(2, 3, E)):
        results.append((y, *torch.autograd.grad((y * mixed).sum(), (x, module.omega.weight))))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_far_positions_in_float32():
    module = build()
    x, k = torch.randn(1, 1, E), 100_003
    out = module(x, torch.tensor([[k]]), torch.tensor([[4]]))[0, 0]
    for t in range(E // 2):
        z = complex(x[0, 0, t], x[0, 0, E // 2 + t]) * cmath.exp(1j * k * module.omega.weight[4, t].item())
        assert out[t].item() == pytest.approx(z.real, abs=1e-6)
        assert out[E // 2 + t].item() == pytest.approx(z.imag, abs=1e-6)


def test_initial_frequencies():
    omega = build().omega.weight
    for word in range(V):
        frequencies = [0.0] * 3 if word == PAD else [10000 ** (-2 * t / E) for t in range(3)]
        assert omega[word].tolist() == pytest.approx(frequencies, rel=1e-6)


def test_padding_is_not_rotated_and_gets_no_gradient():
    module = build()
    x = torch.randn(1, 2, E)
    out = module(x, torch.tensor([[9, 5]]), torch.tensor([[PAD, 4]]))
    assert out[0, 0].equal(x[0, 0])
    out[..., 0].sum().backward()
    learned = module.omega.weight.grad.ne(0).any(dim=-1)
    assert learned.nonzero().flatten().tolist() == [4]


def test_odd_width_is_rejected():
    with pytest.raises(ValueError, match=r"complex_order.*7"):
        build(7)
