"""Linear attention in chunks, O(n): dense products inside a chunk, one running state between chunks."""

import torch

from fairseq_lrpe.ops.chunk_causal import chunk_causal


def chunk(q, k, v, *, causal, **options):
    """See :func:`fairseq_lrpe.ops.linear_attention`."""
    if causal and q.size(-2) > 1:
        return chunk_causal(q, k, v, **options)
    return _see_all(q, k, v, **options)


def _see_all(q, k, v, *, normalize, log_decay, state, return_state, chunk_size, eps, dtype):
    """Bidirectional, or at most one new token, which may see all there is."""
    shape, length = q.shape[:2], q.size(-2)
    # Three dimensions: with four, torch multiplies the many small matrices of a decoding step far slower.
    q, k, v = (x.to(dtype).flatten(0, 1) for x in (q, k, v))
    if state is None:
        kv, k_sum = k.mT @ v, k.sum(-2)
    else:
        if log_decay is not None:
            fade = (log_decay * length).exp()[:, None]
            state = state[0] * fade[..., None], state[1] * fade
        kv, k_sum = (x.flatten(0, 1) for x in state)
        # Of one token, a decoding step, the product is elementwise and goes into the sum in one pass.
        kv = torch.addcmul(kv, k.mT, v) if k.size(-2) == 1 else kv + k.mT @ v
        k_sum = k_sum + k.sum(-2)
    out = q @ kv
    if normalize:
        out = out / (q @ k_sum[..., None]).clamp(min=eps)
    out, kv, k_sum = (x.unflatten(0, shape) for x in (out, kv, k_sum))
    return (out, (kv, k_sum)) if return_state else out
