"""Compares angles with exact arithmetic, and rotations with their formula."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from support.pairwise_scores import rotated
from support.tensors import assert_same

from fairseq_lrpe.ops import rotation
from fairseq_lrpe.ops.rotation import cached_phases, complex_features, phases, rotate_pairs

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
FAR = 100_000


def exact_table(thetas):
    """Returns e^{isθ} of Decimals θ for the positions FAR to FAR + 2, reduced modulo 2π with 50 digits."""
    with localcontext() as context:
        context.prec = 50
        angles = [[float((theta * s) % (2 * PI)) for theta in thetas] for s in range(FAR, FAR + 3)]
    angles = torch.tensor(angles, dtype=torch.float64)
    return torch.polar(torch.ones_like(angles), angles)


def exact_angles(width):
    with localcontext() as context:
        context.prec = 50
        return [(Decimal(10000).ln() * -2 * t / width).exp() for t in range(width // 2)]


@pytest.mark.parametrize("theta_type, formula", [
    ("a", lambda t, count, width, m: 10000 ** (-2 * t / width)),
    ("b", lambda t, count, width, m: math.pi * (t + 1) / (2 * m * count)),
    ("c", lambda t, count, width, m: math.pi / (2 * m * (t + 1))),
])  # fmt: skip
def test_rotary_angles(theta_type, formula):
    for count, width in ((4, 8), (8, 8), (5, 5), (1, 2)):
        angles = rotation.rotary_angles(theta_type, count, width, 77)
        expected = [formula(t, count, width, 77) for t in range(count)]
        assert angles.dtype == torch.float64
        assert angles.tolist() == pytest.approx(expected, rel=1e-14, abs=0)


def test_phases_are_exact_at_far_positions():
    theta = torch.rand(7)
    table = phases(theta, FAR, 3)
    exact = exact_table([Decimal(t) for t in theta.tolist()])
    torch.testing.assert_close(table, exact, rtol=0, atol=1e-10)
    in_float32 = (FAR * theta).double()
    assert (torch.polar(torch.ones_like(in_float32), in_float32) - exact[0]).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_cached_phases_are_exact_at_far_positions(dtype):
    table = cached_phases(("a", 16, 32, 512), FAR, 3, dtype, torch.device("cpu"))
    assert table.dtype == dtype
    exact = exact_table(exact_angles(32))
    atol = 1e-6 if dtype == torch.complex64 else 1e-10
    torch.testing.assert_close(table.to(torch.complex128), exact, rtol=0, atol=atol)


def test_gradients_of_phases():
    theta = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: torch.view_as_real(phases(t, 5, 3)), (theta,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rotate_pairs_matches_formula(dtype):
    x = torch.randn(2, 3, 4, 6).to(dtype)
    angles = torch.randn(4, 3, dtype=torch.float64)
    out = rotate_pairs(x, torch.polar(torch.ones_like(angles), angles))
    assert out.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), rotated(x.double(), angles), rtol=eps, atol=2 * eps)


def test_rotate_pairs_accepts_any_memory_layout():
    x, angles = torch.randn(2, 3, 4, 6), torch.randn(4, 3)
    table = torch.polar(torch.ones_like(angles), angles)
    transposed = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    odd_rows = torch.cat([x, x[..., :1]], dim=-1)[..., :6]
    odd_start = torch.cat([x[..., :1], x], dim=-1)[..., 1:]
    for view in (transposed, odd_rows, odd_start):
        assert rotate_pairs(view, table).equal(rotate_pairs(x, table))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_products_of_complex_features_are_hermitian(dtype):
    a, b = (torch.randn(4, 3, dtype=dtype) for _ in range(2))
    angles = torch.randn(2, 4, 3, dtype=torch.float64)
    first, second = torch.polar(torch.ones_like(angles), angles)
    ours = complex_features(a, first), complex_features(b, second)
    assert ours[0].shape == (4, 6) and ours[0].dtype == torch.float64
    assert_same(ours[0] @ ours[1].T, ((a * first).conj() @ (b * second).T).real, 1e-12)


@pytest.mark.parametrize("width", [16, 20])
def test_compiled_rotations_are_real_and_equal_the_complex_ones(width):
    """Features beyond the table are not changed."""
    operations = []

    def backend(graph, inputs):
        operations.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    x, angles = (torch.randn(*shape, dtype=torch.double) for shape in ((2, 3, 7, width), (7, 8)))
    inputs = x.requires_grad_(), angles.requires_grad_()

    def rotate(x, angles):
        return rotate_pairs(x, torch.polar(torch.ones_like(angles), angles))

    compiled = torch.compile(rotate, backend=backend, fullgraph=True)
    outputs = [f(*inputs) for f in (compiled, rotate)]
    weights = torch.randn_like(outputs[0])
    gradients = [torch.autograd.grad(out, inputs, weights) for out in outputs]
    for one, other in ((outputs), *zip(*gradients, strict=True)):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert not any("as_complex" in name for name in operations)
