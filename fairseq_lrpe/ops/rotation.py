"""Rotations of feature pairs by angles that are proportional to the position."""

import functools
import math

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import apply
from fairseq_lrpe.ops.position_index import PositionIndex

THETA_TYPES = ("a", "b", "c")


def rotary_frequencies(theta_type: str, count: int, width: int, max_positions: int) -> Tensor:
    """Returns the rotation angles per position, θ_t for t = 0, .., count-1, as (count,) in float64.

    The formulas are those of ``theta_type`` in the LRPE papers' pseudocode, where M is the length of the
    input. Here M is ``max_positions``, so that angles do not depend on the input.

        a   10000^(-2t/width)
        b   π (t+1) / (2 M count)
        c   π / (2 M (t+1))

    Raises:
        ValueError: for an unknown type.
    """
    t = torch.arange(count, dtype=torch.float64)
    if theta_type == "a":
        return 10000.0 ** (-2 * t / width)
    if theta_type == "b":
        return math.pi / 2 / max_positions / count * (t + 1)
    if theta_type == "c":
        return math.pi / 2 / max_positions / (t + 1)
    raise ValueError(f"unknown theta type {theta_type!r}: choose from {', '.join(THETA_TYPES)}")


def phases(theta: Tensor, offset: int | PositionIndex, length: int) -> Tensor:
    """Returns the phases e^{isθ_t} for each position s, complex128 (length, count).

    The result is differentiable in ``theta``. Angles are computed in float64 for every model dtype, because
    in float32 the rounding error of s·θ reaches 0.01 at s = 100,000.

    Args:
        theta: angles per position (count,).
        offset: first of ``length`` consecutive positions, or a :class:`PositionIndex` whose query positions
            are used.
        length: number of positions.
    """
    if isinstance(offset, PositionIndex):
        return phases(theta, 0, offset.max_position + 1)[offset.query_positions]
    s = torch.arange(offset, offset + length, dtype=torch.float64, device=theta.device)
    angles = s[:, None] * theta.double()
    return torch.polar(torch.ones_like(angles), angles)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)  # a table cached during inference may be used in training later
def _cached_table(frequencies, size, dtype, device):
    return phases(rotary_frequencies(*frequencies), 0, size).to(device=device, dtype=dtype)


def cached_phases(
    frequencies: tuple, offset: int | PositionIndex, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns :func:`phases` for ``theta = rotary_frequencies(*frequencies)``, from a cached table."""
    if isinstance(offset, PositionIndex):
        return cached_phases(frequencies, 0, offset.max_position + 1, dtype, device)[offset.query_positions]
    size = max(64, 1 << (offset + length - 1).bit_length())
    return _cached_table(frequencies, size, dtype, device)[offset : offset + length]


def complex_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype for rotations of x: complex128 for float64, and complex64 for all other dtypes."""
    return torch.complex128 if x.dtype == torch.float64 else torch.complex64


def rotate_pairs(x: Tensor, table: Tensor) -> Tensor:
    """Rotates the pairs (x_2t, x_2t+1) of x (..., L, d) by the phases ``table`` (L, d/2)."""
    pairs = x.to(table.real.dtype).unflatten(-1, (-1, 2))
    # view_as_complex requires even offsets and strides. torch.compile cannot trace the offset.
    aligned = not torch.compiler.is_compiling() and pairs.storage_offset() % 2 == 0 and pairs.stride(-1) == 1
    if not aligned or any(n % 2 for n in pairs.stride()[:-1]):
        pairs = pairs.clone(memory_format=torch.contiguous_format)
    return torch.view_as_real(torch.view_as_complex(pairs) * table).flatten(-2).to(x.dtype)


def rotate_halves(x: Tensor, table: Tensor) -> Tensor:
    """Multiplies the complex numbers x = [Re, Im] (..., 2d) by the phases ``table`` (..., d)."""
    real, imaginary = x.chunk(2, dim=-1)
    cos, sin = table.real.to(x.dtype), table.imag.to(x.dtype)
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)


def complex_features(x: Tensor, table: Tensor) -> Tensor:
    """Returns the product of x (..., L, d) and the phases ``table`` (L, d), as real features (..., L, 2d).

    If x is real, the features are [Re, Im]; if it is complex, real and imaginary parts alternate. In both
    forms, the dot product of the features of two complex vectors a and b is Re(aᴴ b).
    """
    if x.is_complex():
        return torch.view_as_real(x * table).flatten(-2)
    return apply(_ComplexFeatures, x, table.real.to(x.dtype), table.imag.to(x.dtype))


class _ComplexFeatures(torch.autograd.Function):
    """Computes [x cos, x sin]; the backward pass of the same operations in torch takes twice as long."""

    @staticmethod
    def plain(x, cos, sin):
        return (x.unsqueeze(-2) * torch.stack([cos, sin], dim=-2)).flatten(-2)

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:]) else None, cos, sin)
        return _ComplexFeatures.plain(x, cos, sin)

    @staticmethod
    def backward(ctx, g):
        (x, cos, sin), (g_cos, g_sin) = ctx.saved_tensors, g.chunk(2, dim=-1)
        g_x = torch.addcmul(g_cos * cos, g_sin, sin)
        if x is None:
            return g_x, None, None
        return g_x, (g_cos * x).sum_to_size(cos.shape), (g_sin * x).sum_to_size(sin.shape)
