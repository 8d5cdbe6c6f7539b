"""What linear attention keeps of the keys so far, and what its forms are asked for."""

from typing import NamedTuple

import torch
from torch import Tensor


class LinearState(NamedTuple):
    """Holds the sums over all keys so far, which are all that later queries need of them.

    Under a decay each key, or each feature of it, weighs γ^(n-j), n being the last of them.
    """

    kv: Tensor
    """Σ k vᵀ, (B, H, d, dv)."""
    k_sum: Tensor
    """Σ k, (B, H, d)."""


class Call(NamedTuple):
    """Holds the arguments of :func:`fairseq_lrpe.ops.linear_attention` beside q, k and v, checked."""

    causal: bool
    normalize: bool
    log_decay: Tensor | None  # (H, 1), or (H, d) or (1, d) of each feature
    state: LinearState | None
    return_state: bool
    chunk_size: int | None
    eps: float
    dtype: torch.dtype  # which sums are made in


def add_keys(state: LinearState | None, k: Tensor, v: Tensor, log_decay: Tensor | None) -> LinearState:
    """Returns the state after k (B, H, L, d) and v (B, H, L, dv); all in the dtype that sums are made in."""
    length = k.size(-2)
    if log_decay is not None:
        if length > 1:
            age = torch.arange(length - 1, -1, -1, device=k.device)
            k = k * torch.exp(log_decay[:, None] * age[:, None])
        if state is not None:
            fade = torch.exp(log_decay * length)
            state = LinearState(state.kv * fade[..., None], state.k_sum * fade)
    if length == 1 and state is not None:  # a decoding step: the product goes into the sum in one pass
        return LinearState(torch.addcmul(state.kv, k.mT, v), state.k_sum + k.squeeze(-2))
    # Three dimensions: with four, torch multiplies many small matrices far slower.
    kv, k_sum = (k.flatten(0, 1).mT @ v.flatten(0, 1)).unflatten(0, k.shape[:2]), k.sum(-2)
    return LinearState(kv, k_sum) if state is None else LinearState(state.kv + kv, state.k_sum + k_sum)
