"""Linear attention: the one entrance, whichever way it is computed."""

from functools import reduce

import torch
from torch import Tensor

from fairseq_lrpe.ops.linear_attention.chunk import chunk
from fairseq_lrpe.ops.linear_attention.fla import fla, fla_can
from fairseq_lrpe.ops.linear_attention.reference import reference
from fairseq_lrpe.ops.linear_attention.state import Call, LinearState, add_keys

BACKENDS = {"reference": reference, "chunk": chunk, "fla": fla}


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    normalize: bool,
    log_decay: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    state: tuple[Tensor, Tensor] | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
    backend: str = "auto",
    eps: float = 1e-6,
) -> Tensor | tuple[Tensor, LinearState]:
    """Computes linear attention in O(n) (LRPE Eq. 3; Katharopoulos et al. 2020):

        o_i = Σ_j γ_h^(i-j) (q_i·k_j) v_j    over the allowed j.

    Args:
        q: (B, H, Lq, d), with the feature map and the encoding already applied.
        k: (B, H, Lk, d).
        v: (B, H, Lk, dv); dv may differ from d.
        causal: j ≤ i only, with the queries at the last Lq positions of the keys, i = Lk-Lq..Lk-1.
        normalize: divide by max(Σ_j γ_h^(i-j) (q_i·k_j), eps).
        log_decay: (H,) log γ ≤ 0, causal only; None is γ = 1. Of (H, d), or (1, d) for all heads, each
            feature has its own: q_i·k_j is then Σ_t γ_t^(i-j) q_it k_jt, without another factor.
        key_padding_mask: (B, Lk) bool, True where a key is padding and contributes nothing.
        state: (Σ k vᵀ (B, H, d, dv), Σ k (B, H, d)) of all keys before these, as a former call returned
            it; decayed to the last of those keys. All queries see it.
        return_state: return (o, state) with these keys added to the state.
        chunk_size: rows of a chunk in the chunk form; None chooses by the widths.
        backend: "chunk"; "reference" (the O(n²) definition); "fla" (the kernels of flash-linear-attention,
            on CUDA from compute capability 8.0 on); "auto": fla where it is installed and can do what is
            asked, else chunk.

    Returns:
        (B, H, Lq, dv). Half-precision input is summed and returned in float32: without a denominator
        the sums outgrow float16.

    Raises:
        ValueError: an unknown backend or one that cannot do this; shapes that do not fit each other; a causal
            call with more queries than keys; a decay without ``causal``; a chunk size below 1.
    """
    if log_decay is not None and log_decay.dim() == 1:
        log_decay = log_decay[:, None]
    _check(q, k, v, causal, log_decay, key_padding_mask, state, chunk_size)
    if backend == "auto":
        backend = "fla" if fla_can(q, k, v, log_decay) else "chunk"
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: choose from auto, {', '.join(BACKENDS)}")

    dtype = reduce(torch.promote_types, (q.dtype, k.dtype, v.dtype, torch.float32))
    log_decay = None if log_decay is None else log_decay.to(q.device, dtype)
    state = None if state is None else LinearState(*(x.to(dtype) for x in state))
    if key_padding_mask is not None:
        k = k.masked_fill(key_padding_mask[:, None, :, None], 0.0)
    with torch.autocast(q.device.type, enabled=False):  # it would sum in half precision again
        before = k.size(-2) - q.size(-2)
        if causal and before and backend != "reference":  # all queries see these keys, as they see a state
            state = add_keys(state, k[:, :, :before].to(dtype), v[:, :, :before].to(dtype), log_decay)
            k, v = k[:, :, before:], v[:, :, before:]
        call = Call(causal, normalize, log_decay, state, return_state, chunk_size, eps, dtype)
        return BACKENDS[backend](q, k, v, call)


def _check(q, k, v, causal, log_decay, key_padding_mask, state, chunk_size):
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x.dim() != 4:
            raise ValueError(f"{name} must be (batch, heads, length, width), not {_shape(x)}")
    if causal and q.size(-2) > k.size(-2):
        raise ValueError(
            f"causal linear attention needs a key for each query, not {q.size(-2)} queries and "
            f"{k.size(-2)} keys: pass what came before as `state`"
        )
    (batch, heads, _, d), keys, dv = q.shape, k.size(2), v.size(3)
    expected = {
        "k": (k, (batch, heads, keys, d)),
        "v": (v, (batch, heads, keys, dv)),
        "key_padding_mask": (key_padding_mask, (batch, keys)),
    }
    if state is not None:
        expected["state[0], Σ k vᵀ,"] = state[0], (batch, heads, d, dv)
        expected["state[1], Σ k,"] = state[1], (batch, heads, d)
    for name, (x, shape) in expected.items():
        if x is not None and x.shape != shape:
            raise ValueError(
                f"{name} must be {shape} beside q {_shape(q)} and v {_shape(v)}, not {_shape(x)}"
            )
    if log_decay is not None and log_decay.shape not in ((heads, 1), (heads, d), (1, d)):
        raise ValueError(
            f"log_decay must be {(heads,)}, {(heads, d)} or {(1, d)} beside q {_shape(q)}, "
            f"not {_shape(log_decay)}"
        )
    if key_padding_mask is not None and key_padding_mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask must be bool, True at padding, not {key_padding_mask.dtype}")
    if log_decay is not None and not causal:
        raise ValueError("log_decay weights a pair by its distance into the past: it needs causal=True")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")


def _shape(x):
    return tuple(x.shape)
