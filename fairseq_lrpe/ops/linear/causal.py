"""Causal linear attention in chunks, with a memory-efficient backward pass.

Let Q, K and V be the C rows of chunk n, i, j = 0..C-1 indices of these rows, and S_n the sum of k vᵀ over all
keys before chunk n, each with the decay from that key to the last key before the chunk. Then

    O = (W ∘ Q Kᵀ) V + (a ∘ Q) S_n,        S_{n+1} = γ^C S_n + (b ∘ K)ᵀ V,
    W_ij = γ^(i-j) for j ≤ i, else 0,      a_i = γ^(i+1),      b_j = γ^(C-1-j).

The denominator is O for V = 1. If each feature has its own γ, W_ij is 1 for j ≤ i, the features of q_i are
weighted by γ^(i-m) and those of k_j by γ^(m-j), where m is the middle of the chunk, and the rows of S_n by
γ^(m+1) before the product with Q. Chunks are then so short that neither weight overflows. Decays of single
positions replace powers of γ by exponentials of sums of log decays inside the chunk; see
:func:`fairseq_lrpe.ops.decay.block_products`.

The backward pass processes the chunks in reverse order with the gradient of S_n. The backward pass recomputes
the products inside chunks from q, k and v, but not the S_n, which are stored and together d / C times as
large as v. This form is used on CPUs; second derivatives use that of :mod:`.all_chunks`.
"""

from functools import partial
from itertools import chain

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import needs_plain_backward, plain_gradients
from fairseq_lrpe.ops.linear.all_chunks import plain_causal
from fairseq_lrpe.ops.linear.decay_weights import log_decay_gradient
from fairseq_lrpe.ops.linear.parts import split_input
from fairseq_lrpe.ops.linear.state import Arguments, LinearState
from fairseq_lrpe.ops.precision import no_autocast
from fairseq_lrpe.ops.threads import run


def chunk_causal(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes causal :func:`fairseq_lrpe.ops.linear_attention` for as many queries as keys."""
    (batch, heads, _, d) = q.shape
    dv = v.size(-1)
    if args.state is None:
        kv, k_sum = (q.new_zeros(batch, heads, *shape, dtype=args.dtype) for shape in ((d, dv), (d,)))
    else:
        kv, k_sum = args.state
    groups = split_input(q, v, args.log_decay, args.chunk_size, args.dtype)
    options = groups, args._replace(log_decay=None, state=None)
    out, kv, k_sum = _ChunkCausal.apply(q, k, v, kv, k_sum, args.log_decay, *options)
    return (out, LinearState(kv, k_sum)) if args.return_state else out


class _ChunkCausal(torch.autograd.Function):
    """Autograd function of :func:`chunk_causal`.

    Inputs are q and k (B, H, L, d), v (B, H, L, dv), and the state (B, H, d, dv) and (B, H, d). Results are
    the output and the new state. The output and the gradients have the memory layout of v, q and k, so
    that merging the heads into (L, B, H·d) needs no copy. ``g_x`` is the gradient of ``x``.
    """

    @staticmethod
    def forward(ctx, q, k, v, kv, k_sum, log_decay, groups, args):
        dtype = args.dtype
        normalize = args.normalize
        eps = args.eps
        needs_k_sum = normalize or args.return_state
        first_kv = kv
        first_k_sum = k_sum
        kv = kv.clone()
        k_sum = k_sum.clone()
        totals = k_sum.unsqueeze(2)  # a view
        out = torch.empty_like(v, dtype=dtype)
        denominator = kv.new_empty(*q.shape[:3], 1) if normalize else None
        needs_grad = any(ctx.needs_input_grad)

        def process(part):
            w = part.weights(log_decay)
            qs = part.read(q, dtype, w.q)
            ks = part.read(k, dtype, w.k)
            vs = part.read(v, dtype)
            q_state = part.scale(qs, w.q_state)
            k_state = part.scale(ks, w.k_state)
            scores = part.scores(qs, ks, w.products)
            past_kv = part.scan(kv, torch.bmm(k_state.mT, vs), w)
            past_k = part.scan(totals, k_state.sum(1, keepdim=True), w) if needs_k_sum else None
            o = torch.bmm(scores, vs).baddbmm_(q_state, past_kv)
            if normalize:
                sums = scores.sum(-1, keepdim=True) + (q_state * past_k).sum(-1, keepdim=True)
                part.write(denominator, sums)
                o /= sums.clamp(min=eps)
            part.write(out, o)
            return (past_kv, past_k) if needs_grad else None

        results = run(lambda parts: [process(part) for part in parts], groups)
        states = chain.from_iterable(chain.from_iterable(results)) if needs_grad else ()
        ctx.groups = groups
        ctx.args = args
        ctx.needs_k_sum = needs_k_sum
        sums = first_kv, first_k_sum, kv, k_sum
        ctx.save_for_backward(q, k, v, log_decay, out if normalize else None, denominator, *sums, *states)
        return out, kv, k_sum

    @staticmethod
    def backward(ctx, *gradients):
        with no_autocast(gradients[0].device):  # callers may run it under autocast
            if not needs_plain_backward(*gradients):
                return _ChunkCausal._backward(ctx, *gradients)
            q, k, v, log_decay, _, _, kv, k_sum, *_ = ctx.saved_tensors
            inputs = q, k, v, kv, k_sum, log_decay
            return *plain_gradients(partial(plain_causal, ctx.args), inputs, gradients), None, None

    @staticmethod
    def _backward(ctx, g_out, g_last_kv, g_last_k_sum):
        q, k, v, log_decay, out, denominator, first_kv, first_k_sum, kv, k_sum, *states = ctx.saved_tensors
        dtype = ctx.args.dtype
        normalize = ctx.args.normalize
        eps = ctx.args.eps
        # The gradient of the decay is a difference of large numbers, so it needs those of q and k in float32.
        g_q, g_k = (torch.empty_like(x, dtype=dtype if ctx.needs_input_grad[5] else None) for x in (q, k))
        g_v = torch.empty_like(v)
        g_kv = g_last_kv.clone()
        g_k_sum = g_last_k_sum.clone()
        g_totals = g_k_sum.unsqueeze(2)  # a view

        def process(part, past_kv, past_k):
            w = part.weights(log_decay)
            qs = part.read(q, dtype, w.q)
            ks = part.read(k, dtype, w.k)
            vs = part.read(v, dtype)
            g_o = part.read(g_out, dtype)
            q_state = part.scale(qs, w.q_state)
            k_state = part.scale(ks, w.k_state)
            if normalize:
                sums = part.read(denominator)
                g_o = g_o / sums.clamp(min=eps)
                g_sums = -(g_o * part.read(out)).sum(-1, keepdim=True) * (sums >= eps)
            g_scores = torch.bmm(g_o, vs.mT)
            g_q_state = torch.bmm(g_o, past_kv.mT)
            if normalize:
                g_scores += g_sums
                g_q_state.addcmul_(g_sums, past_k)

            g_next_kv = part.scan(g_kv, torch.bmm(q_state.mT, g_o), w, backwards=True)
            g_k_state = torch.bmm(vs, g_next_kv.mT)
            if ctx.needs_k_sum:
                update = torch.bmm(g_sums.mT, q_state) if normalize else torch.zeros_like(q_state[:, :1])
                g_k_state += part.scan(g_totals, update, w, backwards=True)
            g_qs = part.scale(g_q_state, w.q_state)
            g_ks = part.scale(g_k_state, w.k_state)
            part.scores_backward(g_scores, qs, ks, w.products, g_qs, g_ks)
            part.write(g_q, g_qs, w.q)
            part.write(g_k, g_ks, w.k)
            del g_scores, g_q_state, g_k_state, g_qs, g_ks
            scores = part.scores(qs, ks, w.products)
            part.write(g_v, torch.bmm(scores.mT, g_o).baddbmm_(k_state, g_next_kv))

        # The forward pass has stored two tensors for each part: the totals of k vᵀ and of k before chunks.
        states = iter(states)
        groups = []
        for parts in ctx.groups:
            groups.append([(part, next(states), next(states)) for part in parts])
        run(lambda parts: [process(*part) for part in reversed(parts)], groups)

        g_log_decay = None
        if ctx.needs_input_grad[5]:
            first = (first_kv * g_kv).sum(3) + first_k_sum * g_k_sum
            last = (kv * g_last_kv).sum(3) + k_sum * g_last_k_sum
            g_log_decay = log_decay_gradient(log_decay, q * g_q - k * g_k, first, last)
        return g_q.to(q.dtype), g_k.to(k.dtype), g_v, g_kv, g_k_sum, g_log_decay, None, None
