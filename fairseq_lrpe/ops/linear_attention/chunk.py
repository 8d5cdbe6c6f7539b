"""Linear attention in O(L) time with plain torch; causal attention is computed in chunks."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed
from fairseq_lrpe.ops.linear_attention.causal import chunk_causal
from fairseq_lrpe.ops.linear_attention.state import Arguments, LinearState, update_state


def chunk(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` with plain torch, on any device."""
    if args.causal and q.size(-2) > 1:
        return chunk_causal(q, k, v, args)
    # Bidirectional, or at most one query: all queries see all keys.
    state = update_state(args.state, k.to(args.dtype), v.to(args.dtype), args.log_decay)
    # torch multiplies the many small matrices of a decoding step far slower with four dimensions than three.
    kv, k_sum, q_rows = (x.flatten(0, 1) for x in (*state, q.to(args.dtype)))
    out = q_rows @ kv
    if args.normalize:
        sums = q_rows @ k_sum[..., None]
        if out.requires_grad and not is_transformed():
            out = _Divide.apply(out, sums, args.eps, q.shape[:2])
            return (out, state) if args.return_state else out
        out = out / sums.clamp(min=args.eps)
    out = out.unflatten(0, q.shape[:2])
    return (out, state) if args.return_state else out


class _Divide(torch.autograd.Function):
    """Divides ``out`` (B·H, L, dv) by max(``sums`` (B·H, L, 1), eps), and returns (B, H, L, dv).

    For the backward pass it saves the quotient, which the next layer saves anyway, instead of the dividend.
    The memory layout of the result is (L, B, H, dv), so that merging the heads into (L, B, H·dv) needs no
    copy.
    """

    @staticmethod
    def forward(ctx, out, sums, eps, batch_and_heads):
        rows, divisors = out.unflatten(0, batch_and_heads), sums.clamp(min=eps).unflatten(0, batch_and_heads)
        quotient = rows.new_empty([rows.size(i) for i in (2, 0, 1, 3)]).permute(1, 2, 0, 3)
        torch.div(rows, divisors, out=quotient)
        ctx.save_for_backward(quotient, sums)
        ctx.eps = eps
        return quotient

    @staticmethod
    def backward(ctx, g):
        quotient, sums = ctx.saved_tensors
        g = g.reshape(len(sums), *g.shape[2:]) / sums.clamp(min=ctx.eps)
        g_sums = -(g * quotient.flatten(0, 1)).sum(-1, keepdim=True) * (sums >= ctx.eps)
        return g, g_sums, None, None
