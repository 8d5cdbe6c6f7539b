"""Compares angles with exact arithmetic, and rotations with explicit matrices."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lrpe.ops.rotation import (
    cached_phases,
    complex_features,
    phases,
    rotary_frequencies,
    rotate_pairs,
)

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
FAR = 100_000


def exact_phase(theta, s):
    """Returns e^{isθ} of a Decimal θ, reduced modulo 2π with 50 digits."""
    with localcontext() as context:
        context.prec = 50
        angle = float((theta * s) % (2 * PI))
    return complex(math.cos(angle), math.sin(angle))


def exact_table(thetas, offset, length):
    return torch.tensor(
        [[exact_phase(theta, s) for theta in thetas] for s in range(offset, offset + length)],
        dtype=torch.complex128,
    )


def exact_frequencies(width):
    """Returns 10000^(-2t/width), t < width/2, with 50 digits."""
    with localcontext() as context:
        context.prec = 50
        return [(Decimal(10000).ln() * -2 * t / width).exp() for t in range(width // 2)]


@pytest.mark.parametrize("theta_type, formula", [
    ("a", lambda t, count, width, m: 10000 ** (-2 * t / width)),
    ("b", lambda t, count, width, m: math.pi * (t + 1) / (2 * m * count)),
    ("c", lambda t, count, width, m: math.pi / (2 * m * (t + 1))),
])  # fmt: skip
def test_rotary_frequencies(theta_type, formula):
    for count, width in ((4, 8), (8, 8), (5, 5), (1, 2)):
        frequencies = rotary_frequencies(theta_type, count, width, 77)
        expected = [formula(t, count, width, 77) for t in range(count)]
        assert frequencies.dtype == torch.float64
        assert frequencies.tolist() == pytest.approx(expected, rel=1e-14, abs=0)


def test_phases_are_exact_at_far_positions():
    theta = torch.rand(7, generator=torch.Generator().manual_seed(0))
    assert theta.dtype == torch.float32
    table = phases(theta, FAR, 3)
    exact = exact_table([Decimal(t) for t in theta.tolist()], FAR, 3)
    torch.testing.assert_close(table, exact, rtol=0, atol=1e-10)
    in_float32 = (FAR * theta).double()
    assert (torch.polar(torch.ones_like(in_float32), in_float32) - exact[0]).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_cached_phases_are_exact_at_far_positions(dtype):
    table = cached_phases(("a", 16, 32, 512), FAR, 3, dtype, torch.device("cpu"))
    assert table.dtype == dtype
    exact = exact_table(exact_frequencies(32), FAR, 3)
    atol = 1e-6 if dtype == torch.complex64 else 1e-10
    torch.testing.assert_close(table.to(torch.complex128), exact, rtol=0, atol=atol)


def test_gradients_of_phases():
    theta = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: torch.view_as_real(phases(t, 5, 3)), (theta,))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(offset=st.integers(0, 3000), length=st.integers(1, 200), theta_type=st.sampled_from(["a", "c"]))
def test_cached_phases_match_phases(offset, length, theta_type):
    frequencies, cpu = (theta_type, 3, 6, 512), torch.device("cpu")
    table = cached_phases(frequencies, offset, length, torch.complex128, cpu)
    whole = cached_phases(frequencies, 0, 4000, torch.complex128, cpu)
    assert table.shape == (length, 3)
    torch.testing.assert_close(table, whole[offset : offset + length], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        table, phases(rotary_frequencies(*frequencies), offset, length), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rotate_pairs_matches_2x2_matrices(dtype):
    x = torch.randn(2, 3, 4, 6).to(dtype)
    angles = torch.randn(4, 3, dtype=torch.float64)
    out = rotate_pairs(x, torch.polar(torch.ones_like(angles), angles))
    cos, sin = angles.cos(), angles.sin()
    matrices = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    expected = torch.einsum("stij,bhstj->bhsti", matrices, x.double().unflatten(-1, (3, 2))).flatten(-2)
    assert out.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=eps, atol=2 * eps)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda x: torch.cat([x, x[..., :1]], dim=-1)[..., :6],
        lambda x: torch.cat([x[..., :1], x], dim=-1)[..., 1:],
    ],
    ids=["transposed", "odd rows", "odd start"],
)
def test_rotate_pairs_accepts_any_memory_layout(view):
    x, angles = torch.randn(2, 3, 4, 6), torch.randn(4, 3)
    table = torch.polar(torch.ones_like(angles), angles)
    assert rotate_pairs(view(x), table).equal(rotate_pairs(x, table))


def test_gradients_of_rotate_pairs():
    angles = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, a: rotate_pairs(x, torch.polar(torch.ones_like(a), a)), (x, angles)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_products_of_complex_features_are_hermitian(dtype):
    a, b = (torch.randn(4, 3, dtype=dtype) for _ in range(2))
    angles = torch.randn(2, 4, 3, dtype=torch.float64)
    tables = torch.polar(torch.ones_like(angles), angles)
    ours = [complex_features(x, table) for x, table in zip((a, b), tables, strict=True)]
    assert ours[0].shape == (4, 6) and ours[0].dtype == torch.float64
    z, w = (x * table for x, table in zip((a, b), tables, strict=True))
    torch.testing.assert_close(ours[0] @ ours[1].T, (z.conj() @ w.T).real, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [3, 1], ids=["each its angle", "one angle"])
def test_gradients_of_complex_features(width):
    angles = torch.randn(4, width, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)

    def features(x, a):
        return complex_features(x, torch.polar(torch.ones_like(a), a))

    assert torch.autograd.gradcheck(features, (x, angles))
    assert torch.autograd.gradgradcheck(features, (x, angles))
    assert torch.autograd.gradcheck(lambda x: features(x, angles.detach()), (x,))
