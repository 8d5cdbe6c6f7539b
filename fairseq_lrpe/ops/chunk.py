"""Linear attention in chunks, O(n): dense products inside a chunk, one running state between chunks."""

from fairseq_lrpe.ops.chunk_causal import chunk_causal


def chunk(q, k, v, *, causal, **options):
    """See :func:`fairseq_lrpe.ops.linear_attention`."""
    if causal and q.size(-2) > 1:
        return chunk_causal(q, k, v, **options)
    return _see_all(q, k, v, **options)


def _see_all(q, k, v, *, normalize, log_decay, state, return_state, chunk_size, eps, dtype):
    """Bidirectional, or at most one new token, which may see all there is."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    kv, k_sum = k.mT @ v, k.sum(-2)
    if state is not None:
        if log_decay is not None:
            fade = (log_decay * q.size(-2)).exp()[:, None]
            state = state[0] * fade[..., None], state[1] * fade
        kv, k_sum = kv + state[0], k_sum + state[1]
    out = q @ kv
    if normalize:
        out = out / (q @ k_sum[..., None]).clamp(min=eps)
    return (out, (kv, k_sum)) if return_state else out
