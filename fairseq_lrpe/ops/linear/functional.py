"""The function ``linear_attention``, which validates its arguments and selects a backend."""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.ops.decay import is_constant, prepared_log_decay
from fairseq_lrpe.ops.documents import Documents, by_document
from fairseq_lrpe.ops.linear.chunk import attend_last, chunk
from fairseq_lrpe.ops.linear.fla import fla, fla_supports
from fairseq_lrpe.ops.linear.reference import reference
from fairseq_lrpe.ops.linear.state import Arguments, LinearState, update_state
from fairseq_lrpe.ops.linear.triton_backend import triton
from fairseq_lrpe.ops.precision import no_autocast, sum_dtype

BACKENDS = {"reference": reference, "chunk": chunk, "fla": fla, "triton": triton}
LINEAR_BACKENDS = ("auto", "chunk", "fla", "triton")
"""Backends of models, without the definition, whose memory grows with the square of the length."""


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
    document_ids: Tensor | Documents | None = None,
) -> Tensor | tuple[Tensor, LinearState]:
    """Computes linear attention in O(L) time (LRPE Eq. 3; Katharopoulos et al. 2020).

    With the decay γ_h of head h, the output is

        o_i = Σ_j γ_h^(i-j) (q_i·k_j) v_j,

    where j runs over all keys, or over the keys j ≤ i if ``causal``.

    Args:
        q: queries (B, H, Lq, d), after the feature map and the positional encoding.
        k: keys (B, H, Lk, d), after the feature map and the positional encoding.
        v: values (B, H, Lk, dv); dv may differ from d.
        causal: whether attention is causal. The queries are then at the last Lq of the Lk positions.
        normalize: whether to divide o_i by max(Σ_j γ_h^(i-j) (q_i·k_j), eps).
        log_decay: log γ_h ≤ 0 (H,), only if ``causal``; None means γ_h = 1, and -inf means γ_h = 0, so that
            queries attend only to the key at their own position. With shape (H, d), or (1, d) for
            all heads, each feature t has its own decay, and Σ_t γ_t^(i-j) q_it k_jt replaces q_i·k_j.
            With shape (B, H, Lk) or (B, H, Lk, d), each key l has its own decay γ_l, by which the sums over
            all earlier keys are multiplied: Π_{l=j+1..i} γ_l replaces γ^(i-j). A γ_l below e^-100 counts as
            e^-100. Padding does not decay.
        key_padding_mask: bool (B, Lk), True at keys that are padding and are ignored.
        state: sums over all earlier keys, Σ k vᵀ (B, H, d, dv) and Σ k (B, H, d), as returned by a previous
            call. All queries attend to these keys.
        return_state: whether to return the sums over earlier and current keys, too.
        chunk_size: number of rows per chunk of the backend "chunk", by default 64 or 32, depending on d + dv,
            or less for strong decays of each feature.
        backend: "reference" (the O(L²) definition); "chunk" (plain torch); on GPUs of compute capability 8.0
            or higher, "fla" (the kernels of flash-linear-attention) or "triton" (kernels of this project,
            whose speed was not measured yet); or "auto" (fla where it is installed and supports the
            arguments, otherwise chunk).
        eps: lower bound of the denominator.
        document_ids: numbers (B, L) of the documents in packed rows, or the result of
            :meth:`fairseq_lrpe.ops.documents.Documents.from_ids`; Lq = Lk is required. The output is that of
            a separate call for each document. Excludes ``state`` and ``return_state``.

    Returns:
        The output (B, H, Lq, dv), or a tuple of the output and the new state. Half-precision input gives
        output in float32, because sums that are not divided by a denominator exceed float16's range.

    Raises:
        ValueError: for an unknown backend or one that does not support the arguments, incompatible shapes, a
            causal call with more queries than keys, a decay without ``causal``, a chunk size below 1, or
            ``document_ids`` that descend or are combined with what they exclude.
        TypeError: if ``document_ids`` are not integers.
    """
    _check(q, k, v, causal, log_decay, key_padding_mask, state, chunk_size)
    if document_ids is not None:
        if state is not None or return_state or q.size(2) != k.size(2):
            raise ValueError(
                "document_ids require as many queries as keys, and neither state nor return_state: call "
                "linear_attention for each document"
            )
        options = {"normalize": normalize, "chunk_size": chunk_size, "backend": backend, "eps": eps}
        return _by_document(q, k, v, document_ids, causal, log_decay, key_padding_mask, options)
    if backend == "auto":
        backend = "fla" if fla_supports(q, k, v) else "chunk"
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: choose from auto, {', '.join(BACKENDS)}")

    dtype = sum_dtype(q.dtype, k.dtype, v.dtype)
    varies = log_decay is not None and not is_constant(log_decay)
    log_decay = prepared_log_decay(log_decay, q.device, dtype)
    state = None if state is None else LinearState(*(x.to(dtype) for x in state))
    if key_padding_mask is not None:
        k = k.masked_fill(key_padding_mask[:, None, :, None], 0.0)
        if log_decay is not None and varies:
            log_decay = log_decay.masked_fill(key_padding_mask[:, None, :, None], 0.0)
    with no_autocast(q.device):
        earlier = k.size(-2) - q.size(-2)
        if causal and q.size(-2) == 1 and state is None and not return_state and backend != "reference":
            return attend_last(q, k, v, log_decay, normalize, eps)
        # Earlier keys become part of the state, because all queries attend to both.
        if causal and earlier and backend != "reference":
            decay = log_decay
            if log_decay is not None and varies:
                decay, log_decay = log_decay.split([earlier, q.size(-2)], dim=2)
            state = update_state(state, k[:, :, :earlier].to(dtype), v[:, :, :earlier].to(dtype), decay)
            k = k[:, :, earlier:]
            v = v[:, :, earlier:]
        args = Arguments(causal, normalize, log_decay, state, return_state, chunk_size, eps, dtype)
        return BACKENDS[backend](q, k, v, args)


def _by_document(q, k, v, document_ids, causal, log_decay, key_padding_mask, options):
    inputs = {"q": q, "k": k, "v": v}
    if log_decay is not None and not is_constant(log_decay):
        inputs["log_decay"] = log_decay
    else:
        options = {**options, "log_decay": log_decay}

    def attend(key_padding_mask, **rows):
        rows = {name: x.transpose(1, 2) for name, x in rows.items()}
        out: Any = linear_attention(**rows, **options, causal=causal, key_padding_mask=key_padding_mask)
        return out.transpose(1, 2)

    inputs = {name: x.transpose(1, 2) for name, x in inputs.items()}  # (B, L, H, ...)
    out = by_document(attend, document_ids, causal=causal, key_padding_mask=key_padding_mask, **inputs)
    return out.transpose(1, 2)


def _check(q, k, v, causal, log_decay, key_padding_mask, state, chunk_size):
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x.dim() != 4:
            raise ValueError(f"{name} must have shape (batch, heads, length, width), not {_shape(x)}")
    if causal and q.size(-2) > k.size(-2):
        raise ValueError(
            f"causal linear attention needs at least as many keys as queries, got {k.size(-2)} keys and "
            f"{q.size(-2)} queries: k must have a key at the position of each query; `state` can only "
            "replace the keys before them"
        )
    (batch, heads, _, d) = q.shape
    keys = k.size(2)
    dv = v.size(3)
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
    # torch.export would require that the batch size is not `heads` if shapes of both kinds were compared.
    decays: dict[int, list[tuple[int, ...]]] = {1: [(heads,)], 2: [(heads, 1), (heads, d), (1, d)]}
    decays |= {3: [(batch, heads, keys)], 4: [(batch, heads, keys, n) for n in (1, d)]}
    if log_decay is not None and log_decay.shape not in decays.get(log_decay.dim(), ()):
        raise ValueError(
            f"log_decay must have shape {(heads,)}, {(heads, d)}, {(1, d)}, {(batch, heads, keys)} or "
            f"{(batch, heads, keys, d)} {given}, not {_shape(log_decay)}"
        )
    if key_padding_mask is not None and key_padding_mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask must be bool (True at padding), not {key_padding_mask.dtype}")
    if log_decay is not None and not causal:
        raise ValueError("log_decay requires causal=True, because only earlier keys can decay with distance")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")


def _shape(x):
    return tuple(x.shape)
