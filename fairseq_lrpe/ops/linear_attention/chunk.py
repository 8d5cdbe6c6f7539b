"""Linear attention in chunks, O(n): dense products inside a chunk, one running state between chunks."""

import torch
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
        sums = rows @ k_sum[..., None]
        if out.requires_grad:
            out = _Divided.apply(out, sums, call.eps, q.shape[:2])
            return (out, state) if call.return_state else out
        out = out / sums.clamp(min=call.eps)
    out = out.unflatten(0, q.shape[:2])
    return (out, state) if call.return_state else out


class _Divided(torch.autograd.Function):
    """out (B·H, L, dv) / max(sums (B·H, L, 1), eps) as (B, H, L, dv); ``heads`` is (B, H).

    Keeps the quotient, which the next layer keeps as well, and not what was divided. It lies in memory as
    (L, B, H, dv), so that it goes on as (L, B, H·dv) without a copy.
    """

    @staticmethod
    def forward(ctx, out, sums, eps, heads):
        rows, divisors = out.unflatten(0, heads), sums.clamp(min=eps).unflatten(0, heads)
        divided = rows.new_empty([rows.size(i) for i in (2, 0, 1, 3)]).permute(1, 2, 0, 3)
        torch.div(rows, divisors, out=divided)
        ctx.save_for_backward(divided, sums)
        ctx.eps = eps
        return divided

    @staticmethod
    def backward(ctx, g):
        divided, sums = ctx.saved_tensors
        g = g.flatten(0, 1) / sums.clamp(min=ctx.eps)
        g_sums = -(g * divided.flatten(0, 1)).sum(-1, keepdim=True) * (sums >= ctx.eps)
        return g, g_sums, None, None
