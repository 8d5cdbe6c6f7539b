"""Linear attention by its definition, in O(L²) time; tests compare the faster backends with it."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.linear_attention.state import Arguments, LinearState


def reference(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` from the full score matrix."""
    q, k, v, state = q.to(args.dtype), k.to(args.dtype), v.to(args.dtype), args.state
    n, m = q.size(-2), k.size(-2)
    log_decay = q.new_zeros(q.size(1), 1) if args.log_decay is None else args.log_decay
    i, j = torch.arange(m - n, m, device=q.device), torch.arange(m, device=q.device)

    if args.causal:
        distance = i[:, None] - j
        weight = torch.exp(log_decay[:, None, None] * distance[..., None].clamp(min=0))  # (H, n, m, 1 or d)
        if weight.size(-1) == 1:
            scores = q @ k.transpose(-1, -2) * weight.squeeze(-1)
        else:
            scores = torch.einsum("bhid,bhjd,hijd->bhij", q, k, weight.expand(q.size(1), -1, -1, -1))
        scores = scores.masked_fill(distance < 0, 0.0)
    else:
        scores = q @ k.transpose(-1, -2)
    out, denominator = scores @ v, scores.sum(-1)

    if state is not None:  # the state's position is -1, just before the first key
        weighted_q = torch.exp(log_decay[:, None] * (i + 1)[:, None]) * q
        out = out + weighted_q @ state.kv
        denominator = denominator + (weighted_q @ state.k_sum[..., None]).squeeze(-1)
    if args.normalize:
        out = out / denominator.clamp(min=args.eps)[..., None]
    if not args.return_state:
        return out

    k = k * torch.exp(log_decay[:, None] * (m - 1 - j)[:, None])
    kv, k_sum = k.transpose(-1, -2) @ v, k.sum(-2)
    if state is not None:
        decay = torch.exp(log_decay * m)
        kv, k_sum = kv + decay[..., None] * state.kv, k_sum + decay * state.k_sum
    return out, LinearState(kv, k_sum)
