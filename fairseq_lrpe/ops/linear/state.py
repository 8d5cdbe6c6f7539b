"""Data types for the state and the arguments of linear attention."""

from typing import NamedTuple

import torch
from torch import Tensor


class LinearState(NamedTuple):
    """Sums over all previous keys, from which later queries compute their attention to these keys.

    With a decay γ, key j (or each of its features) is weighted by γ^(n-j), where n is the last key.

    Attributes:
        kv: Σ k vᵀ, (B, H, d, dv).
        k_sum: Σ k, (B, H, d).
    """

    kv: Tensor
    k_sum: Tensor


class Arguments(NamedTuple):
    """Validated arguments of :func:`fairseq_lrpe.ops.linear_attention` besides q, k and v."""

    causal: bool
    normalize: bool
    log_decay: Tensor | None  # constant (1, H or 1, 1, 1 or d), or of each key (B, H, Lk, 1 or d)
    state: LinearState | None
    return_state: bool
    chunk_size: int | None
    eps: float
    dtype: torch.dtype  # dtype in which sums are computed


def update_state(state: LinearState | None, k: Tensor, v: Tensor, log_decay: Tensor | None) -> LinearState:
    """Returns the state after adding k (B, H, L, d) and v (B, H, L, dv), all in the dtype of the sums.

    The given state and the new keys decay up to the last new key, by the ``log_decay`` of :class:`Arguments`.
    """
    length = k.size(-2)
    k = decayed_keys(k, log_decay)
    if log_decay is not None and state is not None:
        total = log_decay.squeeze(2) * length if log_decay.size(2) == 1 else log_decay.sum(2)
        decay = torch.exp(total)
        state = LinearState(state.kv * decay[..., None], state.k_sum * decay)
    if length == 1 and state is not None:  # a decoding step, in which addcmul saves one pass over the state
        return LinearState(torch.addcmul(state.kv, k.mT, v), state.k_sum + k.squeeze(-2))
    # torch multiplies many small matrices far slower with four dimensions than with three.
    kv = (k.flatten(0, 1).mT @ v.flatten(0, 1)).unflatten(0, k.shape[:2])
    k_sum = k.sum(-2)
    return LinearState(kv, k_sum) if state is None else LinearState(state.kv + kv, state.k_sum + k_sum)


def decayed_keys(k: Tensor, log_decay: Tensor | None) -> Tensor:
    """Returns the keys (B, H, L, d), decayed up to the last one."""
    length = k.size(-2)
    if log_decay is None or length == 1:
        return k
    if log_decay.size(2) > 1:
        return k * torch.exp(log_decay.sum(2, keepdim=True) - log_decay.cumsum(2))
    age = torch.arange(length - 1, -1, -1, device=k.device)
    return k * torch.exp(log_decay * age[:, None])
