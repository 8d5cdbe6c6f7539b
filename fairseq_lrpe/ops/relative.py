"""Conversion of tensors indexed by relative distance into matrices indexed by query and key.

No tensor of shape (length, length, width) is formed. The distances r = i − j of a score matrix are listed in
decreasing order. The list starts with the distance between the last query and key 0, and ends with the
distance between the first query and the last key, or with 0 if causal, plus one unused entry that allows
:func:`relative_shift` to return a view. The total number of entries, W, is Lq + Lk, or q_offset + Lq + 1 if
causal. If ``q_offset`` is a :class:`PositionIndex`, the distances are its ``distances`` or, by default,
max_position, .., -max_position.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.autograd import apply
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.position_index import PositionIndex, as_positions, is_consecutive


def distance_table(
    function: Callable[..., Tensor],
    options: tuple,
    queries: int,
    keys: int,
    q_offset: int | PositionIndex,
    causal: bool,
    device: torch.device,
    dtype: torch.dtype | None = None,
    clamp: int = 0,
) -> Tensor:
    """Returns the values (W, ...) of ``function(r, *options)`` for the W distances r of a score matrix.

    The result is a slice of a table that is cached by function, options, device and dtype.

    Args:
        function: maps distances, an integer tensor (n,), to values (n, ...). The function must be the same
            object in every call, because it is part of the cache key.
        options: further arguments of ``function``, which must be hashable.
        queries: number of queries Lq.
        keys: number of keys Lk.
        q_offset: position of the first query; keys start at position 0.
        causal: whether to omit distances of keys after their query.
        device: device of the result.
        dtype: dtype of the result, by default that of the function's values.
        clamp: maximum distance, which replaces larger ones; 0 means no maximum.
    """
    positions = as_positions(q_offset)
    if positions.distances is not None:
        distances = positions.distances.clamp(-clamp, clamp) if clamp else positions.distances
        distances = distances.to(float64_options(device)["device"])
        return function(distances, *options).to(device=device, dtype=dtype)
    first, last = positions.distance_range(queries, keys, causal)
    clamped = max(0, first - clamp) if clamp else 0
    size = 1 << max(first, -last, 63).bit_length()
    table = constant(_table, function, options, size, dtype, device=device)
    rows = table[size - 1 - first + clamped : size - last]
    return torch.cat([rows[:1].expand(clamped, *rows.shape[1:]), rows]) if clamped else rows


def distance_slice(
    matrix: tuple, queries: int, keys: int, q_offset: int | PositionIndex, causal: bool
) -> slice:
    """Returns the part of a score matrix's list of distances that belongs to a block of the matrix.

    Args:
        matrix: the arguments (queries, keys, q_offset, causal) of :func:`distance_table` for the matrix.
        queries: number of queries in the block.
        keys: number of keys in the block.
        q_offset: position of the block's first query.
        causal: as in ``matrix``.
    """
    if not is_consecutive(q_offset):
        return slice(None)  # all blocks have the same list
    first, last = as_positions(q_offset).distance_range(queries, keys, causal)
    all_queries, all_keys, offset, is_causal = matrix
    start, _ = as_positions(offset).distance_range(all_queries, all_keys, is_causal)
    return slice(start - first, start - last + 1)


def _table(function, options, size, dtype, device):
    # Computed in parts, because a wide table in float64 would need several times the memory of the result.
    distances = torch.arange(size - 1, -size - 1, -1, device=device).split(1024)
    return torch.cat([function(part, *options).to(dtype) for part in distances])


def relative_shift(x: Tensor, keys: int, q_offset: int | PositionIndex = 0) -> Tensor:
    """Converts scores of queries and distances into scores of queries and keys (Transformer-XL's shift).

    For consecutive positions, out[..., i, j] = x[..., i, j − i + Lq − 1]. If causal, entries of keys after
    their query are arbitrary, but finite, and have to be masked.

    Args:
        x: scores (..., Lq, W), with one column per distance.
        keys: number of keys Lk.
        q_offset: a :class:`PositionIndex` if positions are not consecutive; integers are ignored.

    Returns:
        The scores (..., Lq, Lk), a view of x for consecutive positions.
    """
    if not is_consecutive(q_offset):
        return x.gather(-1, q_offset.distance_index().expand(*x.shape[:-1], keys))
    return apply(_RelativeShift, x.contiguous(), keys)


class _RelativeShift(torch.autograd.Function):
    # Each element appears at most once in the output, so backward copies instead of accumulating.
    @staticmethod
    def plain(x, keys):
        queries, width = x.shape[-2:]
        rows = x.flatten(-2)[..., queries - 1 : queries - 1 + queries * (width - 1)]
        return rows.unflatten(-1, (queries, width - 1))[..., :keys]

    @staticmethod
    def forward(ctx, x, keys):
        ctx.shape = x.shape
        return _RelativeShift.plain(x, keys)

    @staticmethod
    def backward(ctx, grad):
        grad_x = grad.new_zeros(ctx.shape)
        _RelativeShift.plain(grad_x, grad.size(-1)).copy_(grad)
        return grad_x, None


def expand_distances(x: Tensor, queries: int, keys: int, q_offset: int | PositionIndex = 0) -> Tensor:
    """Expands x (..., W), with one value per distance, into a matrix (..., Lq, Lk) by query and key.

    For consecutive positions, out[..., i, j] = x[..., j − i + Lq − 1], or 0 beyond the end of x.
    """
    if not is_consecutive(q_offset):
        return x[..., q_offset.distance_index()]
    missing = max(0, queries + keys - x.size(-1))  # the shift needs more columns than keys
    x = F.pad(x, (0, missing))
    if torch.compiler.is_compiling():  # unfold would compile each number of keys separately
        return _RelativeShift.plain(x.unsqueeze(-2).expand(*x.shape[:-1], queries, -1), keys)
    return x.unfold(-1, keys, 1)[..., :queries, :].flip(-2)
