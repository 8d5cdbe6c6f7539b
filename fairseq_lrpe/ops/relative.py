"""Conversion of values by relative distance into matrices by query and key.

No tensor of shape (length, length, width) is formed. A score matrix needs the distances r = i − j in
decreasing order, from the last query and key 0 down to the first query and the last key, or down to 0 if
causal; one more makes :func:`relative_shift` a view. There are W = Lq + Lk of them, or q_offset + Lq + 1 if
causal. With a :class:`PositionIndex` as ``q_offset``, the distances are max_position, .., -max_position.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.position_index import PositionIndex


def _distance_range(queries, keys, q_offset, causal):
    """Returns the first and the last of the W distances."""
    if isinstance(q_offset, PositionIndex):
        return q_offset.max_position, -q_offset.max_position
    return q_offset + queries - 1, -1 if causal else q_offset - keys


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
    """Returns ``function(r, *options)`` for the W distances r of a score matrix.

    Values are computed once per function, options and device, and sliced from a cached table.

    Args:
        function: maps an integer tensor (n,) to (n, ...); must be the same object in every call.
        options: further arguments of ``function``, which must be hashable.
        queries: number of queries Lq.
        keys: number of keys Lk.
        q_offset: position of the first query; keys start at position 0.
        causal: whether keys after their query can be omitted.
        device: device of the result.
        dtype: dtype of the result, by default that of ``function``.
        clamp: distances above it are replaced by it; 0 means no limit.

    Returns:
        (W, ...).
    """
    first, last = _distance_range(queries, keys, q_offset, causal)
    clamped = max(0, first - clamp) if clamp else 0
    size = 1 << max(first, -last, 63).bit_length()
    rows = _cached_table(function, options, size, device, dtype)[size - 1 - first + clamped : size - last]
    return torch.cat([rows[:1].expand(clamped, *rows.shape[1:]), rows]) if clamped else rows


def distance_slice(whole: tuple, queries: int, keys: int, q_offset: int, causal: bool) -> slice:
    """Returns the slice that selects the distances of a block from those of the whole score matrix.

    Args:
        whole: (queries, keys, q_offset, causal) of the whole score matrix.
        queries, keys, q_offset, causal: the same of the block.
    """
    first, last = _distance_range(queries, keys, q_offset, causal)
    start = _distance_range(*whole)[0]
    return slice(start - first, start - last + 1)


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)  # a table cached during inference may be used in training later
def _cached_table(function, options, size, device, dtype):
    # In parts: computing a wide table in float64 needs several times its memory.
    distances = torch.arange(size - 1, -size - 1, -1).split(1024)
    return torch.cat([function(part, *options).to(device, dtype) for part in distances])


def relative_shift(x: Tensor, keys: int, q_offset: int | PositionIndex = 0) -> Tensor:
    """Converts columns by distance into columns by key (Transformer-XL's relative shift).

    out[..., i, j] = x[..., i, j − i + Lq − 1]. If causal, entries of keys after their query are arbitrary,
    but finite; the attention mask covers them.

    Args:
        x: (..., Lq, W).
        keys: number of keys Lk.
        q_offset: only tested for being a :class:`PositionIndex`.

    Returns:
        (..., Lq, Lk), a view of x unless ``q_offset`` is a :class:`PositionIndex`.
    """
    if isinstance(q_offset, PositionIndex):
        return x.gather(-1, q_offset.distance_index().expand(*x.shape[:-1], keys))
    return _RelativeShift.apply(x.contiguous(), keys)


def _shifted_view(x, keys):
    queries, width = x.shape[-2:]
    rows = x.flatten(-2)[..., queries - 1 : queries - 1 + queries * (width - 1)]
    return rows.unflatten(-1, (queries, width - 1))[..., :keys]


class _RelativeShift(torch.autograd.Function):
    # Each element appears at most once in the output, so backward copies instead of accumulating.
    @staticmethod
    def forward(ctx, x, keys):
        ctx.shape = x.shape
        return _shifted_view(x, keys)

    @staticmethod
    def backward(ctx, grad):
        grad_x = grad.new_zeros(ctx.shape)
        _shifted_view(grad_x, grad.size(-1)).copy_(grad)
        return grad_x, None


def expand_distances(x: Tensor, queries: int, keys: int, q_offset: int | PositionIndex = 0) -> Tensor:
    """Expands values by distance (..., W) into a Toeplitz matrix (..., Lq, Lk).

    out[..., i, j] = x[..., j − i + Lq − 1]. If causal, entries of keys after their query are 0.
    """
    if isinstance(q_offset, PositionIndex):
        return x[..., q_offset.distance_index()]
    missing = max(0, queries + keys - 1 - x.size(-1))
    return F.pad(x, (0, missing)).unfold(-1, keys, 1)[..., :queries, :].flip(-2)
