"""Rotations of feature pairs by angles that are proportional to the position."""

import math
from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import apply
from fairseq_lrpe.ops.constants import constant, is_tracing
from fairseq_lrpe.ops.float64 import float64_options, to_float64
from fairseq_lrpe.ops.position_index import PositionIndex, integer_positions, is_consecutive
from fairseq_lrpe.ops.rope_scaling import ROPE_BASE, RopeScaling

THETA_TYPES = ("a", "b", "c")

_MIN_TABLE_SIZE = 256
"""Minimum number of consecutive positions in a cached table."""

_MAX_INDEXED_TABLE_SIZE = 4096
"""Number of positions below which phases of non-consecutive positions are looked up in a table from 0 on."""


def rotary_angles(
    theta_type: str,
    count: int,
    width: int,
    max_positions: int,
    scaling: RopeScaling | None = None,
    base: float = ROPE_BASE,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Returns the rotation angles per position, θ_t for t = 0, .., count-1, (count,) in float64.

    The formulas are those of ``theta_type`` in the LRPE papers' pseudocode, where M is the length of the
    input. Here M is ``max_positions``, so that angles do not depend on the input.

        a   base^(-2t/width), by default 10000^(-2t/width)
        b   π (t+1) / (2 M count)
        c   π / (2 M (t+1))

    A ``scaling`` is then applied to the angles. Instead of a "dynamic" one, pass the result of ``at_length``.

    Raises:
        ValueError: for an unknown type.
    """
    if scaling is not None:
        theta = rotary_angles(theta_type, count, width, max_positions, None, base, device)
        return scaling.scale(theta, width, base)
    t = torch.arange(count, **float64_options(device))
    if theta_type == "a":
        return base ** (-2 * t / width)
    if theta_type == "b":
        return math.pi / 2 / max_positions / count * (t + 1)
    if theta_type == "c":
        return math.pi / 2 / max_positions / (t + 1)
    raise ValueError(f"unknown theta type {theta_type!r}: choose from {', '.join(THETA_TYPES)}")


def phases(theta: Tensor, offset: int | PositionIndex, length: int) -> Tensor:
    """Returns the phases e^{isθ_t} for each position s, (length, count).

    The result is differentiable in ``theta``. Angles are computed in float64 for every model dtype, because
    in float32 the rounding error of s·θ reaches 0.01 at s = 100,000. The result is complex128, on the device
    of :func:`fairseq_lrpe.ops.float64.to_float64`.

    Args:
        theta: angles per position (count,).
        offset: first of ``length`` consecutive positions, or a :class:`PositionIndex` whose query positions
            are used.
        length: number of positions.
    """
    theta = to_float64(theta)
    if not is_consecutive(offset):
        s = integer_positions(offset.query_positions).to(theta.device)
        if offset.max_position < s.numel():
            return phases(theta, 0, offset.max_position + 1)[s]
        s = s.to(theta.dtype)
    else:
        s = torch.arange(offset, offset + length, dtype=theta.dtype, device=theta.device)
    angles = s[..., None] * theta
    one = constant(torch.ones, 1, device=angles.device, dtype=angles.dtype)
    return torch.polar(one, angles)


def _table(angle_arguments, first, size, device):
    options: Any = {"device": device}
    return phases(rotary_angles(*angle_arguments, **options), first, size)


def cached_phases(
    angle_arguments: tuple, offset: int | PositionIndex, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns :func:`phases` for ``theta = rotary_angles(*angle_arguments)``, from a cached table.

    The table does not grow with ``offset``. Phases at a few far positions of a :class:`PositionIndex`, and
    phases that torch traces, are computed without a table.
    """
    theta_options = float64_options(device)
    if not is_consecutive(offset):
        if offset.max_position < max(_MAX_INDEXED_TABLE_SIZE, offset.query_positions.numel()):
            table = cached_phases(angle_arguments, 0, offset.max_position + 1, dtype, device)
            return table[integer_positions(offset.query_positions)]
        theta_options = float64_options(offset.query_positions.device)
    elif not is_tracing():
        size = max(_MIN_TABLE_SIZE, 1 << (length - 1).bit_length())
        start = offset % size
        rows = size if start + length <= size else 2 * size
        table = constant(_table, angle_arguments, offset - start, rows, device=device, dtype=dtype)
        return table[start : start + length]
    theta = constant(rotary_angles, *angle_arguments, **theta_options)
    return phases(theta, offset, length).to(device=device, dtype=dtype)


def complex_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype for rotations of x: complex128 for float64, and complex64 for all other dtypes."""
    return torch.complex128 if x.dtype == torch.float64 else torch.complex64


def rotate_pairs(x: Tensor, table: Tensor) -> Tensor:
    """Rotates the pairs (x_2t, x_2t+1) of x (..., L, d), t < n, by the phases ``table`` (..., L, n).

    Features from 2n on are not changed.
    """
    width = 2 * table.size(-1)
    if width < x.size(-1):
        return torch.cat([rotate_pairs(x[..., :width], table), x[..., width:]], dim=-1)
    pairs = x.to(table.real.dtype).unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # compilers fuse real operations only
        first, second = pairs.unbind(-1)
        cos = table.real
        sin = table.imag
        rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
        return rotated.flatten(-2).to(x.dtype)
    # view_as_complex requires even offsets and strides.
    aligned = pairs.storage_offset() % 2 == 0 and pairs.stride(-1) == 1
    if not aligned or any(n % 2 for n in pairs.stride()[:-1]):
        pairs = pairs.clone(memory_format=torch.contiguous_format)
    return torch.view_as_real(torch.view_as_complex(pairs) * table).flatten(-2).to(x.dtype)


def rotate_halves(x: Tensor, table: Tensor) -> Tensor:
    """Multiplies the complex numbers x = [Re, Im] (..., 2d) by the phases ``table`` (..., d)."""
    real, imaginary = x.chunk(2, dim=-1)
    cos = table.real.to(x.dtype)
    sin = table.imag.to(x.dtype)
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)


def complex_features(x: Tensor, table: Tensor) -> Tensor:
    """Returns the product of x (..., L, d) and phases ``table`` (..., L, d), as real features (..., L, 2d).

    If x is real, the features are [Re, Im]; if it is complex, real and imaginary parts alternate. In both
    forms, the dot product of the features of two complex vectors a and b is Re(aᴴ b).
    """
    if x.is_complex():
        return torch.view_as_real(x * table).flatten(-2)
    cos, sin = torch.view_as_real(table.resolve_conj()).to(x.dtype).unbind(-1)
    return apply(_ComplexFeatures, x, cos, sin)


class _ComplexFeatures(torch.autograd.Function):
    """Autograd function of [x cos, x sin], whose backward pass takes half the time of torch's."""

    @staticmethod
    def plain(x, cos, sin):
        return (x.unsqueeze(-2) * torch.stack([cos, sin], dim=-2)).flatten(-2)

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:]) else None, cos, sin)
        return _ComplexFeatures.plain(x, cos, sin)

    @staticmethod
    def backward(ctx, g):
        (x, cos, sin) = ctx.saved_tensors
        (g_cos, g_sin) = g.chunk(2, dim=-1)
        g_x = torch.addcmul(g_cos * cos, g_sin, sin)
        if x is None:
            return g_x, None, None
        return g_x, (g_cos * x).sum_to_size(cos.shape), (g_sin * x).sum_to_size(sin.shape)
