"""Causal linear attention in chunks; of its intermediate results the states alone are kept.

With S_n the sum of k_j v_jᵀ over all chunks before chunk n, and Q, K, V the C rows of chunk n,

    O = (W ∘ Q Kᵀ) V + (a ∘ Q) S_n,        S_{n+1} = γ^C S_n + (b ∘ K)ᵀ V,
    W_ij = γ^(i-j) for j ≤ i, else 0,      a_i = γ^(i+1),      b_j = γ^(C-1-j),

and the same with V = 1 for the denominator. Where each feature has its γ, W is 1 for j ≤ i, and in its place
the features of q_i and k_j in the first product are weighted by γ^(i-m) and γ^(m-j), m the middle of a chunk
that is so short that neither is large. The backward pass runs through the chunks from the end with the
gradient of S_n, and makes all else again from q, k and v: the S_n are together d / C times as large as v, and
to make them again took longer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_lrpe.ops.fading import rows_in_range
from fairseq_lrpe.ops.linear_attention.state import Call, LinearState


def chunk_causal(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor | tuple[Tensor, LinearState]:
    """Computes causal :func:`fairseq_lrpe.ops.linear_attention` of as many queries as keys."""
    (batch, heads, _, d), dv = q.shape, v.size(-1)
    nothing = (q.new_zeros(batch, heads, *shape, dtype=call.dtype) for shape in ((d, dv), (d,)))
    kv, k_sum = call.state or nothing
    plan = _plan(q, v, call.log_decay, call.chunk_size, call.dtype)
    count = call.normalize or call.return_state
    rest = call.log_decay, plan, call.normalize, count, call.eps
    out, kv, k_sum = _ChunkCausal.apply(q, k, v, kv, k_sum[..., None, :], *rest)
    return (out, LinearState(kv, k_sum.squeeze(2))) if call.return_state else out


def default_chunk_size(d: int, dv: int) -> int:
    """Returns the rows of a chunk: products inside one cost C² (d + dv), those with the state C d dv."""
    return 64 if d + dv >= 128 else 32  # the fastest of 16, 32, .. 256 on a CPU at six widths


def _elements(device):
    """How many numbers of q to work on at a time: as many as a core's cache holds, or as fill a GPU."""
    return 2**18 if device.type == "cpu" else 2**24


def _plan(q, v, log_decay, chunk_size, dtype):
    """The parts, in order: as many whole chunks at a time as fit, and the rows left over at the end."""
    batch, heads, length, d = q.shape
    size = min(chunk_size or default_chunk_size(d, v.size(-1)), length)
    if log_decay is not None and log_decay.size(-1) > 1:
        size = rows_in_range(log_decay, size)
    weights = {rows: _Weights.of(log_decay, rows, q.device, dtype) for rows in {size, length % size} if rows}
    fits = max(1, _elements(q.device) // (heads * size * max(d, v.size(-1))))
    batches = min(batch, fits)
    parts = []
    for first in range(0, batch, batches):
        sequences = slice(first, first + batches)
        start = 0
        while start < length:
            chunks = min(fits // batches, (length - start) // size)
            shape = (chunks, size) if chunks else (1, length - start)
            parts.append(_Part(sequences, start, *shape, heads, weights[shape[1]]))
            start += shape[0] * shape[1]
    return parts


@dataclass(frozen=True)
class _Weights:
    """W, a, b and γ^C for a chunk, None where all are 1: (H, 1, C, C), (H, 1, C, 1) twice, (H, 1, 1).

    Where each feature has its γ, they are (C, C), (H, 1, C, d) twice and (H, d, 1), and ``inner`` are the
    weights of q and k within the chunk.
    """

    pairs: Tensor
    past: Tensor | None = None
    last: Tensor | None = None
    fade: Tensor | None = None
    inner: tuple[Tensor | None, Tensor | None] = (None, None)

    @classmethod
    def of(cls, log_decay, rows, device, dtype):
        i = torch.arange(rows, device=device)
        all_one = torch.ones(rows, rows, device=device, dtype=dtype).tril()
        if log_decay is None:
            return cls(all_one)
        decay, by_feature = log_decay.detach().to(dtype), log_decay.size(-1) > 1
        power, i = decay[:, None, None], i[:, None]
        middle = power * (i - rows // 2)
        return cls(
            all_one if by_feature else torch.exp(power * (i - i.T).clamp(min=0)).tril(),
            torch.exp(power * (i + 1)),
            torch.exp(power * (rows - 1 - i)),
            torch.exp(decay * rows)[..., None],
            (middle.exp(), middle.neg().exp()) if by_feature else (None, None),
        )


@dataclass(frozen=True)
class _Part:
    """``chunks`` chunks of ``size`` rows, from row ``start`` on, of the ``sequences`` (a slice of B)."""

    sequences: slice
    start: int
    chunks: int
    size: int
    heads: int
    weights: _Weights

    def of(self, x):
        """The view (sequences, H, chunks, size, d) of x (B, H, L, d)."""
        rows = x[self.sequences, :, self.start : self.start + self.chunks * self.size]
        return rows.unflatten(2, (self.chunks, self.size))

    def take(self, x, dtype=None):
        """(B, H, L, d) -> (sequences·H·chunks, size, d)."""
        return self.of(x).flatten(0, 2).to(dtype or x.dtype)

    def put(self, x, rows):
        self.of(x).copy_(rows.unflatten(0, (-1, self.heads, self.chunks)))

    def weigh(self, rows, weight):
        if weight is None:
            return rows
        return (rows.unflatten(0, (-1, self.heads, self.chunks)) * weight).flatten(0, 2)

    def plus(self, total, a, b, weight):
        """``total`` + weight ∘ (a b)."""
        return total.baddbmm_(a, b) if weight is None else total.add_(self.weigh(torch.bmm(a, b), weight))

    def weigh_pairs_(self, scores):
        scores.unflatten(0, (-1, self.heads, self.chunks)).mul_(self.weights.pairs)
        return scores

    def scan(self, total, steps, backwards=False):
        """The totals before each chunk's step (sequences·H·chunks, d, dv); the last stays in ``total``."""
        total = total[self.sequences]
        steps = steps.unflatten(0, (-1, self.heads, self.chunks))
        before = torch.empty_like(steps)
        # A chunk is an addition here; cumsum reads and writes one element after the other.
        rows, steps = before.unbind(2), steps.unbind(2)
        if backwards:
            rows, steps = rows[::-1], steps[::-1]
        rows[0].copy_(total)
        fade = self.weights.fade
        if fade is not None and total.size(-2) == 1:
            fade = fade.mT
        for row, step, after in zip(rows, steps, (*rows[1:], total), strict=True):
            if fade is None:
                torch.add(row, step, out=after)
            else:
                torch.addcmul(step, row, fade, out=after)
        return before.flatten(0, 2)


class _ChunkCausal(torch.autograd.Function):
    """q, k (B, H, L, d), v (B, H, L, dv) and the state (B, H, d, dv), (B, H, 1, d) -> outputs and new state.

    Outputs and gradients lie in memory as v, q and k do, so that they need no copy to go on as (L, B, H·d).

    ``count``: are the denominator's sums wanted? A gradient is named ``g_`` and what it is of.
    """

    @staticmethod
    def forward(ctx, q, k, v, kv, k_sum, log_decay, plan, normalize, count, eps):
        dtype = kv.dtype
        first_kv, first_k_sum, kv, k_sum = kv, k_sum, kv.clone(), k_sum.clone()
        out = torch.empty_like(v, dtype=dtype)
        denominator = kv.new_empty(*q.shape[:3], 1) if normalize else None
        states, keep = [], any(ctx.needs_input_grad)

        for part in plan:
            w = part.weights
            qs, ks, vs = (part.take(x, dtype) for x in (q, k, v))
            q_past, k_last = part.weigh(qs, w.past), part.weigh(ks, w.last)
            q_in, k_in = part.weigh(qs, w.inner[0]), part.weigh(ks, w.inner[1])
            scores = part.weigh_pairs_(torch.bmm(q_in, k_in.mT))
            past_kv = part.scan(kv, torch.bmm(k_last.mT, vs))
            past_k = part.scan(k_sum, k_last.sum(1, keepdim=True)) if count else None
            if keep:
                states += past_kv, past_k
            o = torch.bmm(scores, vs).baddbmm_(q_past, past_kv)
            if normalize:
                sums = scores.sum(-1, keepdim=True) + (q_past * past_k).sum(-1, keepdim=True)
                part.put(denominator, sums)
                o /= sums.clamp(min=eps)
            part.put(out, o)

        ctx.plan, ctx.normalize, ctx.count, ctx.eps = plan, normalize, count, eps
        sums = first_kv, first_k_sum, kv, k_sum
        ctx.save_for_backward(q, k, v, log_decay, out, denominator, *sums, *states)
        return out, kv, k_sum

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g_out, g_kv, g_k_sum):
        with torch.autocast(g_out.device.type, enabled=False):  # it may be on around the backward pass
            return _ChunkCausal._backward(ctx, g_out, g_kv, g_k_sum)

    @staticmethod
    def _backward(ctx, g_out, g_last_kv, g_last_k_sum):
        q, k, v, log_decay, out, denominator, first_kv, first_k_sum, kv, k_sum, *states = ctx.saved_tensors
        dtype = first_kv.dtype
        g_q, g_k, g_v = (torch.empty_like(x) for x in (q, k, v))
        g_kv, g_k_sum = g_last_kv.clone(), g_last_k_sum.clone()

        for part in reversed(ctx.plan):
            past_k, past_kv, w = states.pop(), states.pop(), part.weights
            qs, ks, vs, g_o = (part.take(x, dtype) for x in (q, k, v, g_out))
            q_past, k_last = part.weigh(qs, w.past), part.weigh(ks, w.last)
            if ctx.normalize:
                sums = part.take(denominator)
                g_o = g_o / sums.clamp(min=ctx.eps)
                g_sums = -(g_o * part.take(out)).sum(-1, keepdim=True) * (sums >= ctx.eps)
            q_in, k_in = part.weigh(qs, w.inner[0]), part.weigh(ks, w.inner[1])
            scores, g_scores = part.weigh_pairs_(torch.bmm(q_in, k_in.mT)), torch.bmm(g_o, vs.mT)
            g_q_past = torch.bmm(g_o, past_kv.mT)
            if ctx.normalize:
                g_scores += g_sums
                g_q_past.addcmul_(g_sums, past_k)
            part.weigh_pairs_(g_scores)

            g_next_kv = part.scan(g_kv, torch.bmm(q_past.mT, g_o), backwards=True)
            g_k_last = torch.bmm(vs, g_next_kv.mT)
            if ctx.count:
                step = torch.bmm(g_sums.mT, q_past) if ctx.normalize else torch.zeros_like(q_past[:, :1])
                g_k_last += part.scan(g_k_sum, step, backwards=True)
            part.put(g_q, part.plus(part.weigh(g_q_past, w.past), g_scores, k_in, w.inner[0]))
            part.put(g_k, part.plus(part.weigh(g_k_last, w.last), g_scores.mT, q_in, w.inner[1]))
            part.put(g_v, torch.bmm(scores.mT, g_o).baddbmm_(k_last, g_next_kv))

        g_log_decay = None
        if ctx.needs_input_grad[5]:
            # γ^(i-j) is a factor γ^i on every q_i and γ^-j on every k_j, the first state standing at -1 and
            # the last one being read at L - 1.
            i = torch.arange(q.size(2), device=q.device, dtype=torch.float64)
            rows = q * g_q - k * g_k
            first = (first_kv * g_kv).sum(3) + (first_k_sum * g_k_sum).squeeze(2)
            last = (kv * g_last_kv).sum(3) + (k_sum * g_last_k_sum).squeeze(2)
            if log_decay.size(1) == 1:
                rows, first, last = (x.sum(-1, keepdim=True) for x in (rows, first, last))
            found = torch.einsum("bhid,i->bhd", rows.double(), i) + first + (q.size(2) - 1) * last
            g_log_decay = found.sum(0).sum_to_size(log_decay.shape).to(log_decay.dtype)
        return g_q, g_k, g_v, g_kv, g_k_sum, g_log_decay, None, None, None, None
