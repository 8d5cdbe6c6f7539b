"""Products of queries and keys whose features decay with the distance, at constant or varying rates."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed
from fairseq_lrpe.ops.constants import derived
from fairseq_lrpe.ops.feature_products import FeatureProducts
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.precision import at_least_float32, no_autocast, sum_dtype

MIN_LOG_DECAY = -1e5
"""Lower bound of log decays; the exponential of this bound is 0 even in float64."""

_MAX_EXPONENT = 32.0
"""Largest exponent of a weight in a product, so that the product of two weighted numbers fits float32."""

MIN_LOG_GATE = -100.0
"""Lower bound of log decays that differ between positions.

A decay of e^-100 weights all earlier keys by less than 1e-43. Sums of logarithms stay small, so that
differences of two sums after the same strong decay are accurate in float32.
"""


def is_constant(log_decay: Tensor) -> bool:
    """Returns whether a decay, (H,), (H, d) or (1, d), depends on the distance only."""
    return log_decay.dim() < 3


def is_of_features(log_decay: Tensor) -> bool:
    """Returns whether a decay has a dimension of features: (H, d), (1, d) or (B, H, L, d)."""
    return log_decay.dim() in (2, 4)


def finite_log_decay(log_decay: Tensor) -> Tensor:
    """Returns ``log_decay`` in at least float32, with a large negative minimum instead of -inf (decay 0).

    At distance 0 the weight is 1 even for the decay 0, but -inf * 0 is NaN.
    """
    minimum = MIN_LOG_DECAY if is_constant(log_decay) else MIN_LOG_GATE
    # In a backward pass, one operation instead of the three of `clamp`.
    return F.threshold(at_least_float32(log_decay), minimum, minimum)


def prepared_log_decay(log_decay: Tensor | None, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """Returns :func:`finite_log_decay` on a device, with the same dimensions for all kinds of decays.

    The shape is (1, H or 1, 1, 1 or d) for a constant decay, and (B, H, L, 1 or d) for a decay of each key.
    With a single key, the latter is like a constant decay, because no key is at a distance.
    """
    return None if log_decay is None else derived(_prepare, log_decay, device, dtype)


def _prepare(log_decay, device, dtype):
    finite = finite_log_decay(log_decay.to(device, dtype))
    if is_constant(log_decay):
        features = log_decay.size(-1) if is_of_features(log_decay) else 1
        return finite.reshape(1, -1, 1, features)
    return finite if is_of_features(log_decay) else finite[..., None]


def decay_of_keys(log_decay: Tensor, positions: Tensor, padding: Tensor | None = None) -> Tensor:
    """Returns the log decays λ·(p_t − p_{t−1}) of each key t, whose sums from key j to i are λ·(p_i − p_j).

    Args:
        log_decay: λ, the logarithms of the decays, (H,), or (H, d) or (1, d) for each feature.
        positions: p (L,), in ascending order.
        padding: (B, L), True at padding, which does not decay.

    Returns:
        A tensor (1 or B, H, L), or (1 or B, 1 or H, L, d) for each feature, in at least float32.
    """
    p = to_float64(positions)[None]
    if padding is not None:
        p = p.masked_fill(padding.to(p.device), -1).cummax(-1).values
    gaps = p.diff(dim=-1, prepend=p[:, :1])[:, None]
    gaps = gaps[..., None] if is_of_features(log_decay) else gaps
    return finite_log_decay(log_decay.to(gaps))[:, None] * gaps


def stable_block_size(log_decay: Tensor, limit: int) -> int:
    """Returns the largest block size, at most ``limit``, for which weights γ^(i−m) do not overflow.

    Here, i is a position of the block and m its middle.
    """
    return max(1, min(limit, int(2 * _MAX_EXPONENT / max(1e-9, float(log_decay.detach().abs().max())))))


def decayed_products(log_decay: Tensor, q: Tensor, k: Tensor) -> Callable[[Tensor, Tensor, int], Tensor]:
    """Returns a function that computes s_ij = Σ_t exp(log_decay_t·(i−j)) q_it k_jt for blocks of queries.

    Queries are processed in blocks. In a block with the middle m, query i is weighted by γ^(i−m) and key j by
    γ^(m−j), where γ = exp(log_decay). Neither weight overflows, and the weights of distant keys underflow to
    0. Computing all products takes O(Lq Lk d) time.

    Args:
        log_decay: logarithms of the decays, at most 0; (H, d), or (1, d) for all heads, or (H, 1) for all
            features.
        q: all queries (B, H, Lq, d); only the shape and dtype are used.
        k: all keys (B, H, Lk, d); only the shape is used.

    Returns:
        A function with the arguments (rows of q, leading keys of k, position of the first row). This function
        returns the products (B, H, rows, keys), whose entries with j > i are arbitrary, but finite.
    """
    log_decay = finite_log_decay(log_decay)
    if not _can_read(log_decay):  # the size of stable blocks depends on values
        return gated_products(log_decay[None, :, None].expand(-1, -1, k.size(-2), -1))
    block_size = stable_block_size(log_decay, 64)
    half = block_size // 2
    num_keys = k.size(-2)
    dtype = sum_dtype(q.dtype)
    powers = torch.arange(num_keys + half - 1, -max(1, q.size(-2)) - half, -1, device=log_decay.device)
    # Keys far after the middle come after every query, so their products only have to be finite.
    weights = torch.exp(log_decay[:, None] * powers[:, None].clamp(min=-half)).to(q.device, dtype)
    q_weights = weights[:, num_keys + 2 * half - block_size : num_keys + 2 * half].flip(-2)  # γ^(i−m)

    def products(q, k, q_offset):
        blocks = []
        with no_autocast(q.device):
            k = k.to(dtype)
            for start in range(0, q.size(-2), block_size):
                block = q[..., start : start + block_size, :].to(dtype)
                first = num_keys - 1 - q_offset - start  # index of γ^m, the weight of key 0
                weighted_k = k * weights[:, first : first + k.size(-2)]
                blocks.append(block * q_weights[:, : block.size(-2)] @ weighted_k.mT)
        return torch.cat(blocks, dim=-2) if len(blocks) > 1 else blocks[0]

    return products


def block_products(sums: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns weights for the products Σ_t exp(c_it − c_jt) q_it k_jt of the queries and keys of a block.

    The products are the sum of M ∘ (a ∘ q)(b ∘ k)ᵀ over the returned (M, a, b). If the decay inside the block
    is weak, there is one of them: with the middle m of the block, a = exp(c − c_m), b = exp(c_m − c), and M
    is 1 for j ≤ i and 0 otherwise. If these weights could overflow, pairs across the middle are separated
    from those of each half, which are split again; then, no weight of a pair across a middle exceeds 1 if no
    log decay is positive.

    Args:
        sums: c, sums of log decays from the start of the block up to each position, (.., C, d).

    Returns:
        A list of M (C, C), a (.., C, d) and b (.., C, d).
    """
    length = sums.size(-2)
    i = torch.arange(length, device=sums.device)
    size = 1 << max(0, length - 1).bit_length()
    products: list[tuple[Tensor, Tensor, Tensor]] = []
    while True:
        start = i - i % size
        middle = (start + max(0, size // 2 - 1)).clamp(max=length - 1)
        exponent = sums - sums[..., middle if products else middle[:1], :]
        same_block = start[:, None] == start
        if size == 1 or _is_at_most(exponent, _MAX_EXPONENT):
            mask = same_block & (i[:, None] >= i)
            products.append((mask.to(sums.dtype), exponent.exp(), exponent.neg().exp()))
            return products
        right = i > middle
        mask = same_block & right[:, None] & ~right
        of_queries = exponent.masked_fill(~right[:, None], 0).exp()
        of_keys = exponent.neg().masked_fill(right[:, None], 0).exp()
        products.append((mask.to(sums.dtype), of_queries, of_keys))
        size //= 2


def gated_block_size(log_decay: Tensor, size: int) -> int:
    """Returns a block size, at most ``size``, for decays that differ between positions (B, H, L, d).

    ``size`` is halved, but not below 16, until :func:`block_products` needs a single product for each block.
    Several products of large blocks cost more than the additional states of small ones.
    """
    while size > 16:
        halves = F.pad(log_decay.detach(), (0, 0, 0, -log_decay.size(2) % (size // 2)))
        if _is_at_most(halves.unflatten(2, (-1, size // 2)).sum(3), _MAX_EXPONENT):
            break
        size //= 2
    return size


def _can_read(x):
    """Returns whether values of x are known and can be read without waiting for a device."""
    return x.device.type == "cpu" and not (torch.compiler.is_compiling() or is_transformed())


def _is_at_most(x, limit):
    if not x.numel():
        return True
    low, high = x.detach().aminmax()
    return float(torch.maximum(-low, high)) <= limit


def gated_products(log_decay: Tensor) -> Callable[[Tensor, Tensor, int], Tensor]:
    """Returns a function that computes products of q and k with decays that differ between positions.

    For blocks of queries, it computes s_ij = Σ_t exp(Σ_{l=j+1..i} log_decay_lt) q_it k_jt. Let c be the
    cumulative sums of ``log_decay``, and p the position of the first query of a block. For keys before p,
    query i is multiplied by exp(c_i − c_p) and key j by exp(c_p − c_j), neither of which exceeds 1. For keys
    inside the block, :func:`block_products` applies. Computing all products takes O(Lq Lk d) time.

    Args:
        log_decay: logarithms of the decays at each key, at most 0, (B, H, Lk, d).

    Returns:
        A function like that of :func:`decayed_products`.
    """
    sums = to_float64(finite_log_decay(log_decay)).cumsum(-2)

    def block(q, k, first):
        dtype = sum_dtype(q.dtype)
        rows = q.size(-2)
        c = (sums[..., : first + rows, :] - sums[..., first : first + 1, :]).to(q.device, dtype)
        earlier = c[..., :first, :]
        inner = c[..., first:, :]
        q = q.to(dtype)
        k = k.to(dtype)
        inside = products_inside(q, k[..., first : first + rows, :], inner)
        before = (q * inner.exp()) @ (k[..., :first, :] * earlier.neg().exp()).mT
        return F.pad(torch.cat([before, inside], dim=-1), (0, k.size(-2) - first - rows))

    def products(q, k, q_offset):
        with no_autocast(q.device):
            starts = range(0, q.size(-2), 64)
            blocks = [block(q[..., s : s + 64, :], k, q_offset + s) for s in starts]
        return torch.cat(blocks, dim=-2)

    return products


def products_inside(q: Tensor, k: Tensor, sums: Tensor) -> Tensor:
    """Returns the products s_ij = Σ_t exp(c_it − c_jt) q_it k_jt of the queries and keys of blocks.

    Entries with j > i are 0.

    Args:
        q: queries (.., C, d), which can have additional leading dimensions.
        k: keys (.., C, d).
        sums: c, sums of log decays up to each position, (.., C, d), of which differences are used. They may
            have a wider dtype than q and k.
    """
    if not _can_read(sums):
        return FeatureProducts(q, k, sums).scores()
    total: Any = 0
    for mask, a, b in block_products(sums):
        total = total + mask.to(q) * ((q * a.to(q)) @ (k * b.to(q)).mT)
    return total


def gate_bias(sums: Tensor, queries: int, keys: int, q_offset: int, dtype: torch.dtype) -> Tensor:
    """Returns the sums of the log decays after key j up to query i, c_i − c_j, (B, H, queries, keys).

    Args:
        sums: c in float64, sums of the log decays up to each position, (B, H, L).
        queries: number of queries.
        keys: number of keys, which start at position 0.
        q_offset: position of the first query.
        dtype: dtype of the result, in which all entries are finite.
    """
    # Differences from the first query are computed in float64, because totals of long sequences are large.
    c = sums[..., : max(keys, q_offset + queries)] - sums[..., q_offset : q_offset + 1]
    c = c.to(sum_dtype(dtype)).clamp(max=torch.finfo(dtype).max / 4)
    return (c[..., q_offset : q_offset + queries, None] - c[..., None, :keys]).to(dtype)
