"""Linear attention in chunks, O(n): dense products inside a chunk, one running state between chunks."""

from fairseq_lrpe.ops.chunk_causal import chunk_causal


def chunk(q, k, v, *, causal, normalize, log_decay, state, return_state, chunk_size, eps, dtype):
    """See :func:`fairseq_lrpe.ops.linear_attention`."""
    if causal and q.size(-2) > 1:
        return chunk_causal(
            q,
            k,
            v,
            normalize=normalize,
            log_decay=log_decay,
            state=state,
            return_state=return_state,
            chunk_size=chunk_size,
            eps=eps,
            dtype=dtype,
        )
    if causal and state is not None and log_decay is not None:
        # One new token may see all there is: the bidirectional sum over a faded state.
        fade = (log_decay * q.size(-2)).exp()
        state = state[0] * fade[:, None, None], state[1] * fade[:, None]
    return _bidirectional(q.to(dtype), k.to(dtype), v.to(dtype), normalize, state, return_state, eps)


def _bidirectional(q, k, v, normalize, state, return_state, eps):
    kv, k_sum = k.mT @ v, k.sum(-2)
    if state is not None:
        kv, k_sum = kv + state[0], k_sum + state[1]
    out = q @ kv
    if normalize:
        out = out / (q @ k_sum[..., None]).clamp(min=eps)
    return (out, (kv, k_sum)) if return_state else out
