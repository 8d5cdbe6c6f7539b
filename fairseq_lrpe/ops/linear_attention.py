"""Linear attention: the one entrance, whichever way it is computed."""

import torch

from fairseq_lrpe.ops.chunk import chunk
from fairseq_lrpe.ops.reference import reference

BACKENDS = {"reference": reference, "chunk": chunk}


def linear_attention(
    q,
    k,
    v,
    *,
    causal,
    normalize,
    log_decay=None,
    key_padding_mask=None,
    state=None,
    return_state=False,
    chunk_size=64,
    backend="auto",
    eps=1e-6,
):
    """o_i = Σ_j γ_h^(i-j) (q_i·k_j) v_j over the allowed j, in O(n) (LRPE Eq. 3; Katharopoulos et al. 2020).

    Args:
        q: (B, H, Lq, d), with the feature map and the encoding already applied.
        k: (B, H, Lk, d).
        v: (B, H, Lk, dv); dv may differ from d.
        causal: j ≤ i only; needs Lq = Lk.
        normalize: divide by max(Σ_j γ_h^(i-j) (q_i·k_j), eps).
        log_decay: (H,) log γ ≤ 0, causal only; None is γ = 1.
        key_padding_mask: (B, Lk) bool, True where a key is padding and contributes nothing.
        state: (Σ k vᵀ (B, H, d, dv), Σ k (B, H, d)) of all keys before these, as a former call returned
            it; decayed to the last of those keys. All queries see it.
        return_state: return (o, state) with these keys added to the state.
        chunk_size: rows of a chunk in the chunk form.
        backend: "chunk", "reference" (the O(n²) definition) or "auto".

    Returns:
        (B, H, Lq, dv). Half-precision input is summed and returned in float32: without a denominator
        the sums outgrow float16.

    Raises:
        ValueError: an unknown backend, a causal call with Lq ≠ Lk, a decay without ``causal``, no chunk size.
    """
    if backend == "auto":
        backend = "chunk"
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: choose from auto, {', '.join(BACKENDS)}")
    if causal and q.size(-2) != k.size(-2):
        raise ValueError(
            f"causal linear attention needs as many queries as keys, not {q.size(-2)} and {k.size(-2)}: "
            "pass what came before as `state`"
        )
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    if log_decay is not None and not causal:
        raise ValueError("log_decay weights a pair by its distance into the past: it needs causal=True")

    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if key_padding_mask is not None:
        k = k.masked_fill(key_padding_mask[:, None, :, None], 0.0)
    with torch.autocast(q.device.type, enabled=False):  # it would sum in half precision again
        return BACKENDS[backend](
            q,
            k,
            v,
            causal=causal,
            normalize=normalize,
            log_decay=None if log_decay is None else log_decay.to(dtype),
            state=state,
            return_state=return_state,
            chunk_size=chunk_size,
            eps=eps,
        )
