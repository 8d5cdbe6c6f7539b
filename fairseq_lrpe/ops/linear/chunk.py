"""Linear attention in O(L) time with plain torch; causal attention is computed in chunks."""

from functools import partial

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed, needs_plain_backward, plain_gradients
from fairseq_lrpe.ops.linear.all_chunks import attend_all_chunks
from fairseq_lrpe.ops.linear.causal import chunk_causal
from fairseq_lrpe.ops.linear.state import Arguments, LinearState, decayed_keys, update_state
from fairseq_lrpe.ops.precision import no_autocast, sum_dtype
from fairseq_lrpe.ops.threads import run, split


def chunk(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` with plain torch, on any device."""
    if args.causal and q.size(-2) > 1:
        return (attend_all_chunks if _uses_all_chunks(q) else chunk_causal)(q, k, v, args)
    # Bidirectional, or at most one query: all queries see all keys.
    q, k, v = (x.to(args.dtype) for x in (q, k, v))
    # torch.compile does not support `out=` with a part of a tensor.
    if args.causal or torch.compiler.is_compiling() or is_transformed():
        state = update_state(args.state, k, v, args.log_decay)
        out = _attend(q, *state, args)
    else:
        kv, k_sum = args.state or (None, None)
        out, *state = _Bidirectional.apply(q, k, v, kv, k_sum, args._replace(state=None))
        state = LinearState(*state)
    return (out, state) if args.return_state else out


def _uses_all_chunks(q):
    return q.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed()


def attend_last(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, normalize: bool, eps: float
) -> Tensor:
    """Returns the output of one query at the position of the last key, without the sums over the keys.

    The arguments are those of :func:`fairseq_lrpe.ops.linear_attention`, which also checks them, except that
    ``log_decay`` is the result of :func:`fairseq_lrpe.ops.decay.prepared_log_decay`.
    """
    dtype = sum_dtype(q.dtype, k.dtype, v.dtype)
    q = q.to(dtype)
    k = k.to(dtype)
    v = v.to(dtype)
    k = decayed_keys(k, log_decay)
    # torch multiplies the many small matrices of a decoding step far slower with four dimensions than three.
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT)
    out = torch.bmm(scores, v.flatten(0, 1))
    if normalize:
        out = out / scores.sum(-1, keepdim=True).clamp(min=eps)
    return out.unflatten(0, q.shape[:2])


def _attend(q, kv, k_sum, args):
    """Returns the output of queries that see all keys."""
    rows = q.flatten(0, 1)
    out = rows @ kv.flatten(0, 1)
    if args.normalize:
        out = out / (rows @ k_sum.flatten(0, 1)[..., None]).clamp(min=args.eps)
    return out.unflatten(0, q.shape[:2])


def _plain(args, q, k, v, kv, k_sum):
    """Computes the output and the state in differentiable operations."""
    state = update_state(None if kv is None else LinearState(kv, k_sum), k, v, None)
    return _attend(q, *state, args), *state


class _Bidirectional(torch.autograd.Function):
    """Autograd function of bidirectional attention, which processes groups of heads at the same time.

    Inputs are q and k (B, H, L, d), v (B, H, L, dv), and the state (B, H, d, dv) and (B, H, d), or None.
    Results are the output and the new state. The output, which the next layer saves anyway, is saved for the
    backward pass instead of the dividend. The memory layout of the output is (L, B, H, dv), so that merging
    the heads into (L, B, H·dv) needs no copy.
    """

    @staticmethod
    def forward(ctx, q, k, v, kv, k_sum, args):
        (batch, heads, length, d) = q.shape
        dv = v.size(-1)
        first = None if kv is None else LinearState(kv, k_sum)
        kv = q.new_empty(batch, heads, d, dv)
        k_sum = q.new_empty(batch, heads, d)
        # Not a view, so that the caller can modify it in place.
        out = q.new_empty_strided((batch, heads, length, dv), (heads * dv, dv, batch * heads * dv, 1))
        sums = q.new_empty(batch, heads, length, 1) if args.normalize else None

        def process(part):
            own = update_state(first and LinearState(*(x[part] for x in first)), k[part], v[part], None)
            kv[part], k_sum[part] = own
            rows = q[part].flatten(0, 1)
            shape = own.kv.shape[:2]
            dividend = (rows @ own.kv.flatten(0, 1)).unflatten(0, shape)
            if sums is not None:
                sums[part] = (rows @ own.k_sum.flatten(0, 1)[..., None]).unflatten(0, shape)
                torch.div(dividend, sums[part].clamp(min=args.eps), out=out[part])
            else:
                out[part] = dividend

        ctx.parts = split(q)
        ctx.args = args
        run(process, ctx.parts)
        saved = (out, sums) if args.normalize else (None, None)
        ctx.save_for_backward(q, k, v, kv, k_sum, *(first or (None, None)), *saved)
        return out, kv, k_sum

    @staticmethod
    def backward(ctx, *gradients):
        with no_autocast(gradients[0].device):  # callers may run it under autocast
            if not needs_plain_backward(*gradients):
                return _Bidirectional._backward(ctx, *gradients)
            q, k, v, _, _, *first, _, _ = ctx.saved_tensors
            plain = partial(_plain, ctx.args)
            return *plain_gradients(plain, (q, k, v, *first), gradients), None

    @staticmethod
    def _backward(ctx, g_out, g_last_kv, g_last_k_sum):
        q, k, v, kv, k_sum, _, _, out, sums = ctx.saved_tensors
        g_q, g_k, g_v, g_kv, g_k_sum = map(torch.empty_like, (q, k, v, kv, k_sum))

        def process(part):
            shape = kv[part].shape[:2]
            qs, ks, vs, g, own_kv = (x[part].flatten(0, 1) for x in (q, k, v, g_out, kv))
            g_own_kv = g_last_kv[part].flatten(0, 1)
            g_sum = g_last_k_sum[part].flatten(0, 1)[:, None]
            if ctx.args.normalize:
                own_sums = sums[part].flatten(0, 1)
                g = g / own_sums.clamp(min=ctx.args.eps)
                g_sums = -(g * out[part].flatten(0, 1)).sum(-1, keepdim=True) * (own_sums >= ctx.args.eps)
                g_sum = torch.baddbmm(g_sum, g_sums.mT, qs)
            g_own_kv = torch.baddbmm(g_own_kv, qs.mT, g)
            g_qs = g @ own_kv.mT
            if ctx.args.normalize:
                g_qs.addcmul_(g_sums, k_sum[part].flatten(0, 1)[:, None])
            g_q[part] = g_qs.unflatten(0, shape)
            g_k[part] = torch.baddbmm(g_sum, vs, g_own_kv.mT).unflatten(0, shape)
            g_v[part] = (ks @ g_own_kv).unflatten(0, shape)
            g_kv[part] = g_own_kv.unflatten(0, shape)
            g_k_sum[part] = g_sum.squeeze(1).unflatten(0, shape)

        run(process, ctx.parts)
        g_first = (g_kv, g_k_sum) if any(ctx.needs_input_grad[3:5]) else (None, None)
        return g_q, g_k, g_v, *g_first, None
