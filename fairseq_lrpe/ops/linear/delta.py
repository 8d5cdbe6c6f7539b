"""Delta rules: linear attention whose keys replace the values that are stored for them."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.decay import prepared_log_decay
from fairseq_lrpe.ops.linear.delta_chunks import delta_chunks
from fairseq_lrpe.ops.precision import no_autocast, sum_dtype
from fairseq_lrpe.utils.suggest import check_choice

BACKENDS = ("auto", "chunk", "reference")


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    log_decay: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    state: Tensor | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes causal linear attention with a delta rule in O(L) time.

    The outputs are o_t = S_tᵀ q_t with the state

        S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t v_tᵀ,

    which decays before it is corrected. Without decay (α = 1), it is DeltaNet (Yang et al. 2024); with one α
    per head, Gated DeltaNet (Yang et al. 2025); with one per feature, Kimi Delta Attention (Zhang et al.
    2025). The state stays bounded if ‖k_t‖ = 1 and 0 ≤ β_t ≤ 2.

    Args:
        q: queries (B, H, Lq, d), at the last Lq of the Lk positions, and already scaled.
        k: keys (B, H, Lk, d).
        v: values (B, H, Lk, dv); dv may differ from d.
        beta: β (B, H, Lk).
        log_decay: log α ≤ 0, (B, H, Lk), or (B, H, Lk, d) for each feature; None means α = 1. An α below
            e^-100 counts as e^-100.
        key_padding_mask: bool (B, Lk), True at padding, which does not change the state.
        state: the state before the first key (B, H, d, dv), as returned by a previous call.
        return_state: whether to return the state after the last key, too.
        chunk_size: number of rows per chunk, by default 64, or 128 where starting operations takes time.
        backend: "reference" (the definition, one position at a time), "chunk" (the same in chunks, see
            :mod:`fairseq_lrpe.ops.linear.delta_chunks`), or "auto" (chunk, and reference for one position).

    Returns:
        The output (B, H, Lq, dv), or a tuple of the output and the new state. Half-precision input gives
        output in float32.

    Raises:
        ValueError: for incompatible shapes, a mask that is not boolean, an unknown backend, or a chunk size
            below 1.
    """
    _check(q, k, v, beta, log_decay, key_padding_mask, state)
    check_choice("backend", backend, BACKENDS)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    dtype = sum_dtype(q.dtype, k.dtype, v.dtype)
    q, k, v, beta = (x.to(dtype) for x in (q, k, v, beta))
    log_decay = prepared_log_decay(log_decay, q.device, dtype)
    if key_padding_mask is not None:
        hidden = key_padding_mask[:, None]
        beta = beta.masked_fill(hidden, 0.0)
        log_decay = None if log_decay is None else log_decay.masked_fill(hidden[..., None], 0.0)
    if state is None:
        state = k.new_zeros(*k.shape[:2], k.size(3), v.size(3))
    if backend == "auto":
        backend = "reference" if k.size(2) <= 1 else "chunk"
    with no_autocast(q.device):
        if backend == "reference":
            out, state = _reference(q, k, v, beta, log_decay, state.to(dtype))
        else:
            out, state = delta_chunks(q, k, v, beta, log_decay, state.to(dtype), chunk_size)
    return (out, state) if return_state else out


def _reference(q, k, v, beta, log_decay, state):
    """Computes the output and the state by their definition."""
    earlier = k.size(2) - q.size(2)
    outputs = [v[:, :, :0]]
    for t in range(k.size(2)):
        key = k[:, :, t, :, None]
        if log_decay is not None:
            state = log_decay[:, :, t, :, None].exp() * state
        change = beta[:, :, t, None, None] * (v[:, :, t, None] - key.mT @ state)
        state = state + key * change
        if t >= earlier:
            outputs.append(q[:, :, t - earlier, None] @ state)
    return torch.cat(outputs, dim=2), state


def _check(q, k, v, beta, log_decay, key_padding_mask, state):
    """Raises a ValueError for shapes that do not fit together."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x.dim() != 4:
            raise ValueError(f"{name} must have shape (batch, heads, length, width), not {tuple(x.shape)}")
    if q.size(2) > k.size(2):
        raise ValueError(f"there must be at least as many keys as queries, not {k.size(2)} and {q.size(2)}")
    batch, heads, keys, d = k.shape
    expected = {
        "q": (q, (batch, heads, q.size(2), d)),
        "v": (v, (batch, heads, keys, v.size(3))),
        "beta": (beta, (batch, heads, keys)),
        "key_padding_mask": (key_padding_mask, (batch, keys)),
        "state": (state, (batch, heads, d, v.size(3))),
    }
    if log_decay is not None:
        shape = (batch, heads, keys, d) if log_decay.dim() == 4 else (batch, heads, keys)
        expected["log_decay"] = log_decay, shape
    for name, (x, shape) in expected.items():
        if x is not None and tuple(x.shape) != shape:
            raise ValueError(
                f"{name} must have shape {shape} for k {tuple(k.shape)} and v {tuple(v.shape)}, not "
                f"{tuple(x.shape)}"
            )
    if key_padding_mask is not None and key_padding_mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask must be bool (True at padding), not {key_padding_mask.dtype}")
