"""Linear attention written as its definition, O(n²): what every faster form is compared with."""

import torch


def reference(q, k, v, *, causal, normalize, log_decay, state, return_state, chunk_size, eps, dtype):
    """See :func:`fairseq_lrpe.ops.linear_attention`; builds the whole score matrix."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    n, m = q.size(-2), k.size(-2)
    decay = q.new_zeros(q.size(1)) if log_decay is None else log_decay
    i, j = torch.arange(n, device=q.device), torch.arange(m, device=q.device)

    scores = q @ k.transpose(-1, -2)
    if causal:
        distance = i[:, None] - j
        weight = torch.exp(decay[:, None, None] * distance.clamp(min=0))
        scores = (scores * weight).masked_fill(distance < 0, 0.0)
    out, denominator = scores @ v, scores.sum(-1)

    if state is not None:  # it stands one position before the first query
        past_kv, past_k = state
        weight = torch.exp(decay[:, None] * (i + 1))[..., None]
        out = out + weight * (q @ past_kv)
        denominator = denominator + (weight * (q @ past_k[..., None])).squeeze(-1)
    if normalize:
        out = out / denominator.clamp(min=eps)[..., None]
    if not return_state:
        return out

    k = k * torch.exp(decay[:, None] * (m - 1 - j))[..., None]
    kv, k_sum = k.transpose(-1, -2) @ v, k.sum(-2)
    if state is not None:
        fade = torch.exp(decay * m)[:, None]
        kv, k_sum = kv + fade[..., None] * past_kv, k_sum + fade * past_k
    return out, (kv, k_sum)
