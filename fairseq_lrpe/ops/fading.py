"""Products of queries and keys whose features fade with the distance, each at its own rate."""

from collections.abc import Callable

import torch
from torch import Tensor


def rows_in_range(log_decay: Tensor, most: int) -> int:
    """Returns how many rows, at most ``most``, can be weighted by γ^(i−m) from their middle m on.

    The largest weight is e^32, so that a product of two with numbers of any use is one of float32.
    """
    return max(1, min(most, int(64 / max(1e-9, -float(log_decay.detach().min())))))


def fading_products(log_decay: Tensor, q: Tensor, k: Tensor) -> Callable[[Tensor, Tensor, int], Tensor]:
    """Returns a function of some rows of q (B, H, Lq, d), the first keys of k, and the first row's position.

    It returns s_ij = Σ_t exp(log_decay_t·(i−j)) q_it k_jt, (B, H, Lq, Lk), where j ≤ i; its other entries are
    finite. ``log_decay`` (H, d), or (1, d) for all heads, or (H, 1) for all features, is at most 0.

    Some queries at a time are weighted by γ^(i−m), m in their middle, and the keys by γ^(m−j): neither
    overflows, and the weights of distant keys vanish. O(Lq Lk d).
    """
    rows = rows_in_range(log_decay, 64)
    half = rows // 2
    positions, dtype = k.size(-2), torch.promote_types(q.dtype, torch.float32)
    powers = torch.arange(positions + half - 1, -q.size(-2) - half, -1, device=log_decay.device)
    # Keys far after the middle are after every query as well: their weights are as good as any, and finite.
    weights = torch.exp(log_decay[:, None] * powers[:, None].clamp(min=-half)).to(q.device, dtype)
    here = weights[:, positions + 2 * half - rows : positions + 2 * half].flip(-2)  # γ^(i−m)

    def products(q, k, q_offset):
        parts = []
        with torch.autocast(q.device.type, enabled=False):  # it would multiply in half precision again
            k = k.to(dtype)
            for start in range(0, q.size(-2), rows):
                part = q[..., start : start + rows, :].to(dtype)
                oldest = positions - 1 - q_offset - start  # where γ^m stands, the weight of key 0
                seen = k * weights[:, oldest : oldest + k.size(-2)]
                parts.append(part * here[:, : part.size(-2)] @ seen.mT)
        return torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]

    return products
