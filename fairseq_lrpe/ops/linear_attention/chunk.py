"""Linear attention in chunks, O(n): dense products inside a chunk, one running state between chunks."""

from torch import Tensor

from fairseq_lrpe.ops.linear_attention.chunk_causal import chunk_causal
from fairseq_lrpe.ops.linear_attention.state import Call, LinearState, add_keys


def chunk(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` with plain torch, on any device."""
    if call.causal and q.size(-2) > 1:
        return chunk_causal(q, k, v, call)
    # Bidirectional, or at most one new token, which may see all there is.
    state = add_keys(call.state, k.to(call.dtype), v.to(call.dtype), call.log_decay)
    # Three dimensions: with four, torch multiplies the many small matrices of a decoding step far slower.
    kv, k_sum, rows = (x.flatten(0, 1) for x in (*state, q.to(call.dtype)))
    out = rows @ kv
    if call.normalize:
        out = out / (rows @ k_sum[..., None]).clamp(min=call.eps)
    out = out.unflatten(0, q.shape[:2])
    return (out, state) if call.return_state else out
