"""Linear attention written as its definition, O(n²): what every faster form is compared with."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.linear_attention.state import Call, LinearState


def reference(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` through the whole score matrix."""
    q, k, v, state = q.to(call.dtype), k.to(call.dtype), v.to(call.dtype), call.state
    n, m = q.size(-2), k.size(-2)
    decay = q.new_zeros(q.size(1), 1) if call.log_decay is None else call.log_decay
    i, j = torch.arange(m - n, m, device=q.device), torch.arange(m, device=q.device)

    if call.causal:
        distance = i[:, None] - j
        weight = torch.exp(decay[:, None, None] * distance[..., None].clamp(min=0))  # (H, n, m, 1 or d)
        if weight.size(-1) == 1:
            scores = q @ k.transpose(-1, -2) * weight.squeeze(-1)
        else:
            scores = torch.einsum("bhid,bhjd,hijd->bhij", q, k, weight.expand(q.size(1), -1, -1, -1))
        scores = scores.masked_fill(distance < 0, 0.0)
    else:
        scores = q @ k.transpose(-1, -2)
    out, denominator = scores @ v, scores.sum(-1)

    if state is not None:  # it stands one position before the first key
        fading = torch.exp(decay[:, None] * (i + 1)[:, None]) * q
        out = out + fading @ state.kv
        denominator = denominator + (fading @ state.k_sum[..., None]).squeeze(-1)
    if call.normalize:
        out = out / denominator.clamp(min=call.eps)[..., None]
    if not call.return_state:
        return out

    k = k * torch.exp(decay[:, None] * (m - 1 - j)[:, None])
    kv, k_sum = k.transpose(-1, -2) @ v, k.sum(-2)
    if state is not None:
        fade = torch.exp(decay * m)
        kv, k_sum = kv + fade[..., None] * state.kv, k_sum + fade * state.k_sum
    return out, LinearState(kv, k_sum)
