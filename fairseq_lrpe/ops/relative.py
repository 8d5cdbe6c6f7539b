"""From values by relative distance to a matrix by query and key, without a tensor of (length, length, width).

A score matrix needs the distances r = i − j from the last query's to key 0 down to the first query's to the
last key, or to 0 when causal; one more makes :func:`shift` a view. So there are W = Lq + Lk of them, or
q_offset + Lq + 1, always decreasing. Where ``q_offset`` is :class:`Places` they are last, .., -last.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.places import Places


def _ends(queries, keys, q_offset, causal):
    """The first and the last of the W distances."""
    if isinstance(q_offset, Places):
        return q_offset.last, -q_offset.last
    return q_offset + queries - 1, -1 if causal else q_offset - keys


def distance_table(
    function: Callable[..., Tensor],
    options: tuple,
    queries: int,
    keys: int,
    q_offset: int | Places,
    causal: bool,
    device: torch.device,
    dtype: torch.dtype | None = None,
    clamp: int = 0,
) -> Tensor:
    """Returns ``function(r, *options)`` for the W distances: one table per function and device, sliced.

    ``function`` takes an integer tensor and must be the same object every time; ``options`` are hashable.
    Distances above ``clamp``, unless it is 0, are taken for it.
    """
    first, last = _ends(queries, keys, q_offset, causal)
    beyond = max(0, first - clamp) if clamp else 0
    size = 1 << max(first, -last, 63).bit_length()
    rows = _table(function, options, size, device, dtype)[size - 1 - first + beyond : size - last]
    return torch.cat([rows[:1].expand(beyond, *rows.shape[1:]), rows]) if beyond else rows


def distance_slice(whole: tuple, queries: int, keys: int, q_offset: int, causal: bool) -> slice:
    """Returns where some distances stand among those of ``whole`` = (queries, keys, q_offset, causal)."""
    first, last = _ends(queries, keys, q_offset, causal)
    start = _ends(*whole)[0]
    return slice(start - first, start - last + 1)


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)  # a cached table may serve training later
def _table(function, options, size, device, dtype):
    # Some rows at a time: what makes a wide table in float64 needs several times its memory.
    distances = torch.arange(size - 1, -size - 1, -1).split(1024)
    return torch.cat([function(part, *options).to(device, dtype) for part in distances])


def shift(x: Tensor, keys: int, q_offset: int | Places = 0) -> Tensor:
    """Turns columns by distance (..., Lq, W) into columns by key (..., Lq, Lk), a view unless of Places.

    out[..., i, j] = x[..., i, j − i + Lq − 1]. When causal, the entries of keys after their query are
    arbitrary (and finite): the mask covers them.
    """
    if isinstance(q_offset, Places):
        return x.gather(-1, q_offset.columns().expand(*x.shape[:-1], keys))
    return _Shift.apply(x.contiguous(), keys)


def _shifted(x, keys):
    queries, width = x.shape[-2:]
    rows = x.flatten(-2)[..., queries - 1 : queries - 1 + queries * (width - 1)]
    return rows.unflatten(-1, (queries, width - 1))[..., :keys]


class _Shift(torch.autograd.Function):
    # Each element goes to one place at most: backward writes the gradients there, once.
    @staticmethod
    def forward(ctx, x, keys):
        ctx.shape = x.shape
        return _shifted(x, keys)

    @staticmethod
    def backward(ctx, grad):
        grad_x = grad.new_zeros(ctx.shape)
        _shifted(grad_x, grad.size(-1)).copy_(grad)
        return grad_x, None


def spread(x: Tensor, queries: int, keys: int, q_offset: int | Places = 0) -> Tensor:
    """Spreads values by distance (..., W) into a matrix (..., Lq, Lk).

    out[..., i, j] = x[..., j − i + Lq − 1]. When causal, 0 stands at keys after their query.
    """
    if isinstance(q_offset, Places):
        return x[..., q_offset.columns()]
    missing = max(0, queries + keys - 1 - x.size(-1))
    return F.pad(x, (0, missing)).unfold(-1, keys, 1)[..., :queries, :].flip(-2)
