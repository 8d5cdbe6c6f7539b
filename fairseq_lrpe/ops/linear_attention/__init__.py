"""Linear attention: the public function, which checks its arguments and selects a backend.

``fairseq_lrpe.ops.linear_attention`` is the function; import everything else from the files in this package.
"""

from functools import reduce

import torch
from torch import Tensor

from fairseq_lrpe.ops.linear_attention.chunk import chunk
from fairseq_lrpe.ops.linear_attention.reference import reference
from fairseq_lrpe.ops.linear_attention.state import Arguments, LinearState, update_state
from fairseq_lrpe.ops.linear_attention.triton import fla, fla_supports

__all__ = ["LinearState", "linear_attention"]

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

        o_i = Σ_j γ_h^(i-j) (q_i·k_j) v_j    over the visible j.

    Args:
        q: (B, H, Lq, d), with the feature map and the encoding already applied.
        k: (B, H, Lk, d), likewise.
        v: (B, H, Lk, dv); dv may differ from d.
        causal: only keys j ≤ i are visible; the queries are at the last Lq positions of the keys,
            i = Lk-Lq..Lk-1.
        normalize: divide by max(Σ_j γ_h^(i-j) (q_i·k_j), eps).
        log_decay: log γ ≤ 0 of each head (H,), only if causal; None means γ = 1. With shape (H, d), or (1, d)
            for all heads, each feature decays on its own: q_i·k_j becomes Σ_t γ_t^(i-j) q_it k_jt.
        key_padding_mask: (B, Lk) bool, True at padding, which contributes nothing.
        state: (Σ k vᵀ (B, H, d, dv), Σ k (B, H, d)) of all earlier keys, as returned by a previous call;
            decayed to the last of those keys. All queries see it.
        return_state: return (o, state), where the state includes these keys.
        chunk_size: rows of a chunk in the ``chunk`` backend; by default chosen from the widths.
        backend: "chunk"; "reference" (the O(n²) definition); "fla" (the kernels of flash-linear-attention,
            on GPUs of compute capability 8.0 or higher); "auto" uses fla where it is installed and supports
            the arguments, and chunk otherwise.
        eps: lower bound of the denominator.

    Returns:
        (B, H, Lq, dv). Half-precision input is summed and returned in float32, because sums that are not
        divided by a denominator exceed float16.

    Raises:
        ValueError: for an unknown backend or one that does not support the arguments, incompatible shapes, a
            causal call with more queries than keys, a decay without ``causal``, or a chunk size below 1.
    """
    if log_decay is not None and log_decay.dim() == 1:
        log_decay = log_decay[:, None]
    _check(q, k, v, causal, log_decay, key_padding_mask, state, chunk_size)
    if backend == "auto":
        backend = "fla" if fla_supports(q, k, v, log_decay) else "chunk"
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: choose from auto, {', '.join(BACKENDS)}")

    dtype = reduce(torch.promote_types, (q.dtype, k.dtype, v.dtype, torch.float32))
    log_decay = None if log_decay is None else log_decay.to(q.device, dtype)
    state = None if state is None else LinearState(*(x.to(dtype) for x in state))
    if key_padding_mask is not None:
        k = k.masked_fill(key_padding_mask[:, None, :, None], 0.0)
    with torch.autocast(q.device.type, enabled=False):  # autocast would sum in half precision
        earlier = k.size(-2) - q.size(-2)
        if causal and earlier and backend != "reference":  # all queries see these keys, as they see a state
            state = update_state(state, k[:, :, :earlier].to(dtype), v[:, :, :earlier].to(dtype), log_decay)
            k, v = k[:, :, earlier:], v[:, :, earlier:]
        args = Arguments(causal, normalize, log_decay, state, return_state, chunk_size, eps, dtype)
        return BACKENDS[backend](q, k, v, args)


def _check(q, k, v, causal, log_decay, key_padding_mask, state, chunk_size):
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x.dim() != 4:
            raise ValueError(f"{name} must have shape (batch, heads, length, width), not {_shape(x)}")
    if causal and q.size(-2) > k.size(-2):
        raise ValueError(
            f"causal linear attention needs at least as many keys as queries, got {k.size(-2)} and "
            f"{q.size(-2)}: pass earlier keys as `state`"
        )
    (batch, heads, _, d), keys, dv = q.shape, k.size(2), v.size(3)
    expected = {
        "k": (k, (batch, heads, keys, d)),
        "v": (v, (batch, heads, keys, dv)),
        "key_padding_mask": (key_padding_mask, (batch, keys)),
    }
    if state is not None:
        expected["state[0] (Σ k vᵀ)"] = state[0], (batch, heads, d, dv)
        expected["state[1] (Σ k)"] = state[1], (batch, heads, d)
    given = f"for q {_shape(q)} and v {_shape(v)}"
    for name, (x, shape) in expected.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} must have shape {shape} {given}, not {_shape(x)}")
    if log_decay is not None and log_decay.shape not in ((heads, 1), (heads, d), (1, d)):
        raise ValueError(
            f"log_decay must have shape {(heads,)}, {(heads, d)} or {(1, d)} {given}, not {_shape(log_decay)}"
        )
    if key_padding_mask is not None and key_padding_mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask must be bool (True at padding), not {key_padding_mask.dtype}")
    if log_decay is not None and not causal:
        raise ValueError("log_decay requires causal=True: it decays with the distance into the past")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")


def _shape(x):
    return tuple(x.shape)
