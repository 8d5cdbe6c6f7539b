"""Angles against exact arithmetic, rotations against explicit matrices."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lrpe.ops.rotation import (
    complex_features,
    fixed_phases,
    phases,
    rotate_pairs,
    theta_ladder,
)

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
FAR = 100_000


def exact_phase(theta, s):
    """e^{isθ} of a Decimal θ: the turn is taken off in 50 digits."""
    with localcontext() as context:
        context.prec = 50
        angle = float((theta * s) % (2 * PI))
    return complex(math.cos(angle), math.sin(angle))


def exact_table(thetas, offset, length):
    return torch.tensor(
        [[exact_phase(theta, s) for theta in thetas] for s in range(offset, offset + length)],
        dtype=torch.complex128,
    )


def exact_ladder(width):
    """10000^(-2t/width), t < width/2, in 50 digits."""
    with localcontext() as context:
        context.prec = 50
        return [(Decimal(10000).ln() * -2 * t / width).exp() for t in range(width // 2)]


@pytest.mark.parametrize(("count", "width"), [(4, 8), (8, 8), (5, 5), (1, 2)])
@pytest.mark.parametrize(
    ("theta_type", "formula"),
    [
        ("a", lambda t, count, width, m: 10000 ** (-2 * t / width)),
        ("b", lambda t, count, width, m: math.pi * (t + 1) / (2 * m * count)),
        ("c", lambda t, count, width, m: math.pi / (2 * m * (t + 1))),
    ],
)
def test_ladders(theta_type, formula, count, width):
    ladder = theta_ladder(theta_type, count, width, 77)
    expected = [formula(t, count, width, 77) for t in range(count)]
    assert ladder.dtype == torch.float64
    torch.testing.assert_close(ladder, torch.tensor(expected).double(), rtol=1e-6, atol=0)
    for ours, theirs in zip(ladder.tolist(), expected, strict=True):
        assert math.isclose(ours, theirs, rel_tol=1e-14)


def test_an_unknown_ladder_is_refused():
    with pytest.raises(ValueError, match=r"'z'.*a, b, c"):
        theta_ladder("z", 4, 8, 512)


def test_phases_are_exact_far_out():
    theta = torch.rand(7, generator=torch.Generator().manual_seed(0))
    assert theta.dtype == torch.float32
    table = phases(theta, FAR, 3)
    exact = exact_table([Decimal(t) for t in theta.tolist()], FAR, 3)
    torch.testing.assert_close(table, exact, rtol=0, atol=1e-10)
    in_float32 = (FAR * theta).double()
    assert (torch.polar(torch.ones_like(in_float32), in_float32) - exact[0]).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_fixed_phases_are_exact_far_out(dtype):
    table = fixed_phases(("a", 16, 32, 512), FAR, 3, dtype, torch.device("cpu"))
    assert table.dtype == dtype
    exact = exact_table(exact_ladder(32), FAR, 3)
    atol = 1e-6 if dtype == torch.complex64 else 1e-10
    torch.testing.assert_close(table.to(torch.complex128), exact, rtol=0, atol=atol)


def test_phases_have_right_gradients():
    theta = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: torch.view_as_real(phases(t, 5, 3)), (theta,))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(offset=st.integers(0, 3000), length=st.integers(1, 200), theta_type=st.sampled_from(["a", "c"]))
def test_slices_of_fixed_phases_agree(offset, length, theta_type):
    ladder, cpu = (theta_type, 3, 6, 512), torch.device("cpu")
    table = fixed_phases(ladder, offset, length, torch.complex128, cpu)
    whole = fixed_phases(ladder, 0, 4000, torch.complex128, cpu)
    assert table.shape == (length, 3)
    torch.testing.assert_close(table, whole[offset : offset + length], rtol=0, atol=1e-12)
    torch.testing.assert_close(table, phases(theta_ladder(*ladder), offset, length), rtol=0, atol=1e-12)


def test_a_table_made_in_inference_mode_serves_training():
    ladder = ("b", 3, 6, 12345)  # no other test has it in the cache
    with torch.inference_mode():
        rotate_pairs(torch.randn(5, 6), fixed_phases(ladder, 0, 5, torch.complex64, torch.device("cpu")))
    x = torch.randn(5, 6, requires_grad=True)
    table = fixed_phases(ladder, 0, 5, torch.complex64, torch.device("cpu"))
    assert not table.is_inference()
    rotate_pairs(x, table).pow(2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_pairs_are_turned_by_2x2_matrices(dtype):
    x = torch.randn(2, 3, 4, 6).to(dtype)
    angles = torch.randn(4, 3, dtype=torch.float64)
    out = rotate_pairs(x, torch.polar(torch.ones_like(angles), angles))
    expected = torch.empty(x.shape, dtype=torch.float64)
    for s in range(4):
        for t in range(3):
            cos, sin = math.cos(angles[s, t]), math.sin(angles[s, t])
            matrix = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
            pair = slice(2 * t, 2 * t + 2)
            expected[:, :, s, pair] = x[:, :, s, pair].double() @ matrix.T
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
def test_pairs_may_lie_anywhere_in_memory(view):
    x, angles = torch.randn(2, 3, 4, 6), torch.randn(4, 3)
    table = torch.polar(torch.ones_like(angles), angles)
    assert rotate_pairs(view(x), table).equal(rotate_pairs(x, table))


def test_pairs_have_right_gradients():
    angles = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, a: rotate_pairs(x, torch.polar(torch.ones_like(a), a)), (x, angles)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_real_products_of_complex_features_are_hermitian(dtype):
    a, b = (torch.randn(4, 3, dtype=dtype) for _ in range(2))
    angles = torch.randn(2, 4, 3, dtype=torch.float64)
    tables = torch.polar(torch.ones_like(angles), angles)
    ours = [complex_features(x, table) for x, table in zip((a, b), tables, strict=True)]
    assert ours[0].shape == (4, 6) and ours[0].dtype == torch.float64
    for s in range(4):
        for t in range(4):
            hermitian = sum(
                (a[s, i] * tables[0, s, i]).conj() * (b[t, i] * tables[1, t, i]) for i in range(3)
            )
            assert abs(ours[0][s].dot(ours[1][t]) - hermitian.real) < 1e-12


@pytest.mark.parametrize("width", [3, 1], ids=["each its angle", "one angle"])
def test_complex_features_have_right_gradients(width):
    angles = torch.randn(4, width, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)

    def features(x, a):
        return complex_features(x, torch.polar(torch.ones_like(a), a))

    assert torch.autograd.gradcheck(features, (x, angles))
    assert torch.autograd.gradgradcheck(features, (x, angles))
    assert torch.autograd.gradcheck(lambda x: features(x, angles.detach()), (x,))
