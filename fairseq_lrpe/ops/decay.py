"""Products of queries and keys whose features decay with the distance, each at its own rate."""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_lrpe.ops.precision import at_least_float32

MIN_LOG_DECAY = -1e5
"""Logarithm that replaces that of smaller decays; all of their powers are 0 in float64, too."""


def finite_log_decay(log_decay: Tensor) -> Tensor:
    """Returns the logarithms in at least float32, and -inf, which is the decay 0, as a finite number.

    The decay 0 weights the distance 0 by 1, but -inf times 0 is not a number.
    """
    return at_least_float32(log_decay).clamp(min=MIN_LOG_DECAY)


def stable_block_size(log_decay: Tensor, limit: int) -> int:
    """Returns the largest block size, at most ``limit``, for which weights γ^(i−m) do not overflow.

    Here, i is a position of the block and m its middle. The weights are at most e^32, so that the product of
    two weighted numbers fits into float32.
    """
    return max(1, min(limit, int(64 / max(1e-9, -float(log_decay.detach().min())))))


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
        A function with the arguments (rows of q, leading keys of k, position of the first row). It returns
        the products (B, H, rows, keys), whose entries with j > i are arbitrary, but finite.
    """
    log_decay = finite_log_decay(log_decay)
    block_size = stable_block_size(log_decay, 64)
    half = block_size // 2
    num_keys, dtype = k.size(-2), torch.promote_types(q.dtype, torch.float32)
    powers = torch.arange(num_keys + half - 1, -max(1, q.size(-2)) - half, -1, device=log_decay.device)
    # Keys far after the middle come after every query, so their products only have to be finite.
    weights = torch.exp(log_decay[:, None] * powers[:, None].clamp(min=-half)).to(q.device, dtype)
    q_weights = weights[:, num_keys + 2 * half - block_size : num_keys + 2 * half].flip(-2)  # γ^(i−m)

    def products(q, k, q_offset):
        blocks = []
        with torch.autocast(q.device.type, enabled=False):  # autocast would multiply in half precision
            k = k.to(dtype)
            for start in range(0, q.size(-2), block_size):
                block = q[..., start : start + block_size, :].to(dtype)
                first = num_keys - 1 - q_offset - start  # index of γ^m, the weight of key 0
                weighted_k = k * weights[:, first : first + k.size(-2)]
                blocks.append(block * q_weights[:, : block.size(-2)] @ weighted_k.mT)
        return torch.cat(blocks, dim=-2) if len(blocks) > 1 else blocks[0]

    return products
