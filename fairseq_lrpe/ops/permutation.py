"""Permutations of features whose power grows with the position."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.position_index import PositionIndex


def odd_even_permutation(width: int) -> Tensor:
    """Returns the gather index of the LRPE papers' pseudocode: k at 2k, and ⌈width/2⌉ + k at 2k+1."""
    index = torch.arange(width)
    return torch.where(index % 2 == 0, index // 2, (index - 1) // 2 + width - width // 2)


def permutation_powers(permutation: Tensor, offset: int | PositionIndex, length: int) -> Tensor:
    """Returns the gather indices of π^s for the positions s.

    Computed by square-and-multiply up to π^offset, then by doubling: any offset works without a table of all
    positions.

    Args:
        permutation: π, gather indices (..., d).
        offset: the positions are offset, offset+1, ..; with a :class:`PositionIndex`, its query positions.
        length: number of positions.

    Returns:
        Gather indices (..., length, d).
    """
    if isinstance(offset, PositionIndex):
        return permutation_powers(permutation, 0, offset.max_position + 1)[..., offset.query_positions, :]
    power = torch.arange(permutation.size(-1), device=permutation.device).expand_as(permutation)
    square, bits = permutation, offset
    while bits:
        if bits & 1:
            power = power.gather(-1, square)
        square, bits = square.gather(-1, square), bits >> 1

    powers, step = power.unsqueeze(-2), permutation
    while powers.size(-2) < length:  # n powers and π^n give the next n powers
        powers = torch.cat([powers, powers.gather(-1, step.unsqueeze(-2).expand_as(powers))], dim=-2)
        step = step.gather(-1, step)
    return powers[..., :length, :]


class _Permute(torch.autograd.Function):
    # The backward pass of gather is a scatter_add; that of a permutation is a gather with its inverse.
    @staticmethod
    def forward(ctx, x, index, inverse):
        ctx.save_for_backward(index, inverse)
        return x.gather(-1, index.expand_as(x))

    @staticmethod
    def backward(ctx, grad):
        index, inverse = ctx.saved_tensors
        return _Permute.apply(grad, inverse, index), None, None


def permute_features(x: Tensor, index: Tensor) -> Tensor:
    """Returns x[..., s, index[..., s, i]] at (s, i); every row of ``index`` is a permutation of 0..d-1."""
    identity = torch.arange(index.size(-1), device=index.device).expand_as(index)
    inverse = torch.empty_like(index).scatter_(-1, index, identity)
    return _Permute.apply(x, index, inverse)
