"""Linear attention by its definition, in O(L²) time; tests compare the faster backends with it."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.linear.state import Arguments, LinearState


def reference(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` from the full score matrix."""
    q = q.to(args.dtype)
    k = k.to(args.dtype)
    v = v.to(args.dtype)
    state = args.state
    n = q.size(-2)
    m = k.size(-2)
    i = torch.arange(m - n, m, device=q.device)
    j = torch.arange(m, device=q.device)
    sums = _decay_sums(args.log_decay, j, q)  # (B or 1, H or 1, m, 1 or d)
    if args.causal:
        later = j > i[:, None]
        exponent = sums[:, :, m - n :, None] - sums[:, :, None]  # (B or 1, H or 1, n, m, 1 or d)
        weight = torch.exp(exponent.masked_fill(later[..., None], 0.0))
        if weight.size(-1) == 1:
            scores = q @ k.transpose(-1, -2) * weight.squeeze(-1)
        else:
            scores = torch.einsum("bhid,bhjd,bhijd->bhij", q, k, weight.expand(*q.shape[:2], -1, -1, -1))
        scores = scores.masked_fill(later, 0.0)
    else:
        scores = q @ k.transpose(-1, -2)
    out = scores @ v
    denominator = scores.sum(-1)

    if state is not None:  # the state's position is -1, just before the first key
        weighted_q = torch.exp(sums[:, :, m - n :]) * q if args.causal else q
        out = out + weighted_q @ state.kv
        denominator = denominator + (weighted_q @ state.k_sum[..., None]).squeeze(-1)
    if args.normalize:
        out = out / denominator.clamp(min=args.eps)[..., None]
    if not args.return_state:
        return out

    last = sums[:, :, -1:] if m else sums.new_zeros(1, 1, 1, 1)
    k = k * torch.exp(last - sums)
    kv = k.transpose(-1, -2) @ v
    k_sum = k.sum(-2)
    if state is not None:
        decay = torch.exp(last).squeeze(2)
        kv = kv + decay[..., None] * state.kv
        k_sum = k_sum + decay * state.k_sum
    return out, LinearState(kv, k_sum)


def _decay_sums(log_decay, j, like):
    """Returns the sums of the log decays up to each key."""
    if log_decay is None:
        return like.new_zeros(1, 1, len(j), 1)
    if log_decay.size(2) > 1:
        return log_decay.cumsum(2)
    return log_decay * (j + 1)[:, None]
