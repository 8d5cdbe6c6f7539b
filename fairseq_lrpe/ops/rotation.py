"""Angles that grow with the position, and the two ways to turn features by them."""

import functools
import math

import torch
from torch import Tensor

from fairseq_lrpe.ops.places import Places

THETA_TYPES = ("a", "b", "c")


def theta_ladder(theta_type: str, count: int, width: int, max_positions: int) -> Tensor:
    """Returns angles per position, (count,) in float64 (LRPE pseudocode, ``theta_type``).

    a: 10000^(-2t/width), b: π/(2 M count)·(t+1), c: π/(2 M)/(t+1), with t = 0..count-1 and
    M = ``max_positions`` where the pseudocode has the length of the input, which would make an
    angle depend on how long a sentence is. ValueError for another type.
    """
    t = torch.arange(count, dtype=torch.float64)
    if theta_type == "a":
        return 10000.0 ** (-2 * t / width)
    if theta_type == "b":
        return math.pi / 2 / max_positions / count * (t + 1)
    if theta_type == "c":
        return math.pi / 2 / max_positions / (t + 1)
    raise ValueError(f"unknown theta type {theta_type!r}: choose from {', '.join(THETA_TYPES)}")


def phases(theta: Tensor, offset: int | Places, length: int) -> Tensor:
    """Returns e^{isθ_t} for s = offset.., complex128 (length, count), differentiable in ``theta``.

    Of :class:`Places`, s are these. In float64 whatever the model's dtype: a float32 product s·θ is off by
    0.01 at s = 100,000.
    """
    if isinstance(offset, Places):
        return phases(theta, 0, offset.last + 1)[offset.index]
    s = torch.arange(offset, offset + length, dtype=torch.float64, device=theta.device)
    angles = s[:, None] * theta.double()
    return torch.polar(torch.ones_like(angles), angles)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)  # a cached table may serve training later
def _fixed_table(ladder, size, dtype, device):
    return phases(theta_ladder(*ladder), 0, size).to(device=device, dtype=dtype)


def fixed_phases(
    ladder: tuple, offset: int | Places, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns :func:`phases` of ``theta_ladder(*ladder)``: one table per ladder and device, sliced."""
    if isinstance(offset, Places):
        return fixed_phases(ladder, 0, offset.last + 1, dtype, device)[offset.index]
    size = max(64, 1 << (offset + length - 1).bit_length())
    return _fixed_table(ladder, size, dtype, device)[offset : offset + length]


def complex_dtype(x: Tensor) -> torch.dtype:
    """Returns the complex dtype rotations of x are computed in: half precision goes through float32."""
    return torch.complex128 if x.dtype == torch.float64 else torch.complex64


def rotate_pairs(x: Tensor, table: Tensor) -> Tensor:
    """Turns the pairs (x_2t, x_2t+1) by the angles of ``table`` (L, d/2): one complex product."""
    pairs = x.to(table.real.dtype).unflatten(-1, (-1, 2))
    if pairs.stride(-1) != 1 or any(n % 2 for n in (pairs.storage_offset(), *pairs.stride()[:-1])):
        pairs = pairs.clone(memory_format=torch.contiguous_format)  # not a view of complex numbers
    return torch.view_as_real(torch.view_as_complex(pairs) * table).flatten(-2).to(x.dtype)


def turn_halves(x: Tensor, table: Tensor) -> Tensor:
    """Multiplies [Re, Im] halves (..., 2d) by the phases of ``table`` (..., d), into halves again."""
    real, imaginary = x.chunk(2, dim=-1)
    cos, sin = table.real.to(x.dtype), table.imag.to(x.dtype)
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)


def complex_features(x: Tensor, table: Tensor) -> Tensor:
    """Returns the real and imaginary parts of e^{isθ_t} x_t, width 2d; x (..., L, d), ``table`` (L, d).

    [Re, Im] for real x; for complex x interleaved, as they lie in memory. The real product of two such
    vectors is Re(ãᴴ b̃): a unitary encoding inside a real dot product.
    """
    if x.is_complex():
        return torch.view_as_real(x * table).flatten(-2)
    return _Features.apply(x, table.real.to(x.dtype), table.imag.to(x.dtype))


class _Features(torch.autograd.Function):
    """[x cos, x sin]; torch's own backward pass of the product takes twice as long."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:]) else None, cos, sin)
        return (x.unsqueeze(-2) * torch.stack([cos, sin], dim=-2)).flatten(-2)

    @staticmethod
    def backward(ctx, g):
        (x, cos, sin), (of_cos, of_sin) = ctx.saved_tensors, g.chunk(2, dim=-1)
        g_x = torch.addcmul(of_cos * cos, of_sin, sin)
        if x is None:
            return g_x, None, None
        return g_x, (of_cos * x).sum_to_size(cos.shape), (of_sin * x).sum_to_size(sin.shape)
