"""Weights of all chunks of causal linear attention with decays; see :mod:`.all_chunks`."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.constants import constant, derived
from fairseq_lrpe.ops.feature_products import is_later
from fairseq_lrpe.ops.float64 import to_float64


class Weights(NamedTuple):
    """Weights of N chunks with C rows.

    The dimensions .. are (B or 1, H or 1, N or 1). K is 1 if all features decay alike, and d otherwise. None
    means that all weights are 1.

    Attributes:
        pairs: W, (C, C) or (.., C, C), or None if K is not 1; see :mod:`fairseq_lrpe.ops.feature_products`.
        sums: if K is not 1, sums of the log decays from the start of the chunk, (.., C, K).
        read: a, (.., C, K).
        update: b, (.., C, K).
        between: Γ with a first column for the initial state and a last row for the final one, which is
            (1 + N, 1 + N) or (B or 1, H or 1, K, 1 + N, 1 + N).
    """

    pairs: Tensor | None
    sums: Tensor | None
    read: Tensor | None
    update: Tensor | None
    between: Tensor


def chunk_weights(log_decay: Tensor | None, size: int, length: int, like: Tensor) -> Weights:
    """Returns the weights of chunks with ``size`` rows.

    Args:
        log_decay: None, constant log decays (1, H or 1, 1, K), or one for each key, (B, H, L, K).
        size: number C of rows of a chunk.
        length: number L of positions; rows beyond L do not decay.
        like: a tensor with the device and the dtype of the weights.
    """
    chunks = -(-length // size)
    if log_decay is None:
        options: Any = {"device": like.device, "dtype": like.dtype}
        pairs = constant(lower_triangle, size, **options)
        return Weights(pairs, None, None, None, constant(lower_triangle, 1 + chunks, **options))
    if log_decay.size(2) == 1:
        return derived(_constant_weights, log_decay, size, length, like.device, like.dtype)
    rates = to_float64(log_decay)  # differences of large sums after strong decays need float64
    if padding := chunks * size - length:
        rates = F.pad(rates, (0, 0, 0, padding))
    return _varying_weights(rates, size, like)


def _constant_weights(log_decay, size, length, device, dtype):
    """Returns the weights γ^distance for log γ (1, H or 1, 1, K)."""
    rates = to_float64(log_decay).reshape(log_decay.size(1), -1)
    is_single = rates.size(-1) == 1
    options: Any = {"device": rates.device, "dtype": rates.dtype}
    distances = constant(_distances, size, length, is_single, **options)
    # All weights are one tensor, so that few operations compute them.
    powers = torch.exp(rates[..., None] * distances.clamp(min=0)).to(device, dtype)
    powers = powers * constant(_is_causal, size, length, is_single, device=device, dtype=dtype)
    shapes = _shapes(size, length, is_single)
    parts = powers.split([rows * columns for rows, columns in shapes], dim=-1)
    parts = [part.unflatten(-1, shape)[None] for part, shape in zip(parts, shapes, strict=True)]
    read, update, between, *pairs = parts  # (1, H or 1, K, .., ..)
    read, update = (x.permute(0, 1, 3, 4, 2) for x in (read, update))
    if is_single:
        return Weights(pairs[0], None, read, update, between)
    rows = torch.arange(1, size + 1, **options)
    return Weights(None, (rates[:, None] * rows[:, None])[None, :, None], read, update, between)


def _varying_weights(rates, size, like):
    """Returns the weights for log decays of all keys, (B, H, N·C, K)."""
    sums = rates.unflatten(2, (-1, size)).cumsum(-2)
    left = sums[..., -1:, :] - sums
    totals = F.pad(left[..., 0, :].add(rates[:, :, ::size]).cumsum(2), (0, 0, 1, 0)).mT
    read, update = torch.stack([sums, left]).to(like).exp()
    between = differences(totals).to(like).exp()
    if sums.size(-1) > 1:
        return Weights(None, sums, read, update, between)
    return Weights(differences(sums.squeeze(-1)).to(like).exp(), None, read, update, between)


def differences(sums: Tensor) -> Tensor:
    """Returns x_i − x_j of sums (.., n) for j ≤ i, and -inf for j > i, (.., n, n)."""
    later = constant(is_later, sums.size(-1), device=sums.device)
    return (sums[..., None] - sums[..., None, :]).masked_fill(later, -torch.inf)


def lower_triangle(size: int, device: torch.device) -> Tensor:
    """Returns whether key j is not after query i, as a number, (size, size)."""
    return torch.ones(size, size, device=device).tril()


def _shapes(size, length, with_pairs):
    """Returns the shapes of the groups of :func:`_distances`."""
    chunks = -(-length // size)
    different = chunks if length % size else 1  # the last chunk may have fewer rows
    return [(1, size), (different, size), (chunks + 1, chunks + 1), *[(size, size)] * with_pairs]


def _distances(size, length, with_pairs, device):
    """Returns the distances (n,) of all weights of chunks, negative for keys after their query.

    The distances are, in this order, those from the start of a chunk to its rows (a), from its rows to its
    end (b), between ends of chunks (Γ) and, if ``with_pairs``, between rows of a chunk (W).
    """
    (_, (chunks, _), (ends, _), *_) = _shapes(size, length, with_pairs)
    rows = torch.arange(1, size + 1, device=device)
    ends = torch.arange(ends, device=device).mul(size).clamp(max=length)
    left = (ends.diff()[:chunks, None] if length % size else size) - rows
    parts = [rows, left.clamp(min=0), ends[:, None] - ends]
    parts += [rows[:, None] - rows] * with_pairs
    return torch.cat([part.flatten() for part in parts])


def _is_causal(size, length, with_pairs, device):
    return _distances(size, length, with_pairs, device) >= 0


def log_decay_gradient(log_decay: Tensor, rows: Tensor, first: Tensor | None, last: Tensor | None) -> Tensor:
    """Returns the gradient of a log decay, in the shape of ``log_decay``.

    The weight of query i and key j is a factor exp(c_i) of q_i times a factor exp(−c_j) of k_j, where c are
    sums of log decays. The initial state counts as a key at position -1, and the final state as a query at
    position L - 1.

    Args:
        log_decay: the log decay.
        rows: q ∘ g_q − k ∘ g_k (B, H, L, d), where g_q and g_k are the gradients of q and k.
        first: product of the initial state and its gradient, summed over the values (B, H, d), or None.
        last: product of the final state and its gradient, likewise.
    """
    if log_decay.size(-1) == 1:
        rows = rows.sum(-1, keepdim=True)
        first, last = (x if x is None else x.sum(-1, keepdim=True) for x in (first, last))
    rows = to_float64(rows)
    length = rows.size(2)
    if log_decay.size(2) > 1:
        # The decay at position n is a term of c_i for all i ≥ n.
        sums = rows.cumsum(2)
        total = sums[:, :, -1:] if last is None else sums[:, :, -1:] + last[:, :, None].to(rows)
        return (rows - sums + total).to(log_decay)
    i = torch.arange(length, device=rows.device, dtype=rows.dtype)
    gradient = torch.einsum("bhid,i->bhd", rows, i)
    if first is not None:
        gradient = gradient + first.to(rows)
    if last is not None:
        gradient = gradient + (length - 1) * last.to(rows)
    return gradient[:, :, None].sum_to_size(log_decay.shape).to(log_decay)
