"""Causal linear attention in chunks, with a memory-efficient backward pass.

Let S_n be the sum of k_j v_jᵀ over all chunks before chunk n, decayed up to the last of these keys, and let
Q, K and V be the C rows of chunk n. Then

    O = (W ∘ Q Kᵀ) V + (a ∘ Q) S_n,        S_{n+1} = γ^C S_n + (b ∘ K)ᵀ V,
    W_ij = γ^(i-j) for j ≤ i, else 0,      a_i = γ^(i+1),      b_j = γ^(C-1-j).

The denominator is the same with V = 1. If each feature has its own γ, W_ij is 1 for j ≤ i, the features of
q_i are weighted by γ^(i-m) and those of k_j by γ^(m-j), where m is the middle of the chunk, and the rows of
S_n by γ^(m+1) before the product with Q. Chunks are then so short that neither weight overflows. Decays of
single positions replace powers of γ by exponentials of sums of log decays inside the chunk; see
:func:`fairseq_lrpe.ops.decay.block_products`.

The backward pass processes the chunks in reverse order with the gradient of S_n. It recomputes the products
inside chunks from q, k and v, but not the S_n, which are stored and together d / C times as large as v.
Second derivatives and transforms of ``torch.func`` use a loop over chunks with the definition instead.
"""

import functools
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed, needs_plain_backward, plain_gradients
from fairseq_lrpe.ops.decay import block_products, gated_block_size, stable_block_size
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.linear_attention.reference import reference
from fairseq_lrpe.ops.linear_attention.state import Arguments, LinearState
from fairseq_lrpe.ops.precision import no_autocast
from fairseq_lrpe.ops.threads import run, split

_CPU_ELEMENTS = 2**18
"""Number of elements of q processed at once on a CPU, which fit a core's cache."""
_GPU_ELEMENTS = 2**24
"""Number of elements of q processed at once on other devices, which they fill."""
_CHUNKS_PER_BLOCK = 128
"""Number of chunks whose updates are summed by one matrix product on other devices."""
_MIN_CHUNKS = 16
"""Number of chunks up to which one addition for each needs fewer operations than the matrix product."""


def chunk_causal(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes causal :func:`fairseq_lrpe.ops.linear_attention` for as many queries as keys."""
    (batch, heads, _, d), dv = q.shape, v.size(-1)
    if args.state is None:
        kv, k_sum = (q.new_zeros(batch, heads, *shape, dtype=args.dtype) for shape in ((d, dv), (d,)))
    else:
        kv, k_sum = args.state
    if is_transformed():
        out, kv, k_sum = _plain(args, q, k, v, kv, k_sum, args.log_decay)
    else:
        groups = _split(q, v, args.log_decay, args.chunk_size, args.dtype)
        options = groups, args._replace(log_decay=None, state=None)
        out, kv, k_sum = _ChunkCausal.apply(q, k, v, kv, k_sum, args.log_decay, *options)
    return (out, LinearState(kv, k_sum)) if args.return_state else out


def _plain(args, q, k, v, kv, k_sum, log_decay):
    """Computes the output and the state in differentiable operations, by the definition for each chunk."""
    size = args.chunk_size or default_chunk_size(q.size(-1), v.size(-1))
    args, state, outputs = args._replace(return_state=True), LinearState(kv, k_sum), []
    chunks = zip(*(x.split(size, dim=2) for x in (q, k, v)), strict=True)
    varies = log_decay is not None and log_decay.dim() > 2
    for number, chunk in enumerate(chunks):
        decay = log_decay[:, :, number * size : (number + 1) * size] if varies else log_decay
        out, state = reference(*chunk, args._replace(log_decay=decay, state=state))
        outputs.append(out)
    return torch.cat(outputs, dim=2), *state


def default_chunk_size(d: int, dv: int) -> int:
    """Returns the number of rows C of a chunk.

    Products inside a chunk cost C² (d + dv), and products with the state C d dv.
    """
    return 64 if d + dv >= 128 else 32  # fastest of 16, 32, .., 256 on a CPU, measured for six widths


def _split(q, v, log_decay, chunk_size, dtype):
    """Splits the batch and the heads into groups, which are processed at the same time.

    Returns the parts of each group, in the order in which they are processed: as many full chunks as fit at a
    time, and the remaining rows.
    """
    length, d = q.shape[2:]
    size = max(1, min(chunk_size or default_chunk_size(d, v.size(-1)), length))
    if log_decay is not None and log_decay.size(-1) > 1:
        if log_decay.dim() == 2:
            size = stable_block_size(log_decay, size)
        elif chunk_size is None:
            size = gated_block_size(log_decay, size)
    groups, weights = [], None
    max_elements = _CPU_ELEMENTS if q.device.type == "cpu" else _GPU_ELEMENTS
    for sequences, heads in split(q):
        if log_decay is None or log_decay.dim() == 2:
            decay = log_decay if log_decay is None or len(log_decay) == 1 else log_decay[heads]
            lengths = {size, length % size} - {0}
            weights = {n: _Weights.create(decay, n, q.device, dtype) for n in lengths}
        max_chunks = max(1, max_elements // ((heads.stop - heads.start) * size * max(d, v.size(-1))))
        groups.append(_parts(sequences, heads, length, size, max_chunks, weights))
    return groups


def _parts(sequences, heads, length, size, max_chunks, weights):
    """Returns the parts of a group of sequences and heads, which have at most ``max_chunks`` chunks each."""
    step = max(1, min(sequences.stop - sequences.start, max_chunks))
    parts = []
    for first in range(sequences.start, sequences.stop, step):
        own = slice(first, min(first + step, sequences.stop))
        start = 0
        while start < length:
            chunks = min(max_chunks // step, (length - start) // size)
            shape = (chunks, size) if chunks else (1, length - start)
            parts.append(_Part(own, heads, start, *shape, weights and weights[shape[1]]))
            start += shape[0] * shape[1]
    return parts


@dataclass(frozen=True)
class _Weights:
    """Decay weights of the chunks with C rows of a part; None where all weights are 1.

    The dimensions .. are (H, 1) for constant decays and (sequences, H, chunks) for those of single positions.
    The last dimension is 1 for one decay per head and d for one decay per feature.

    Attributes:
        products: weights (M, a, b) of the products inside chunks, which are the sum of M ∘ (a ∘ Q)(b ∘ K)ᵀ:
            (C, C) or (.., C, C), and (.., C, d).
        q: weights of q in all products, (.., C, d).
        k: weights of k in all products, (.., C, d).
        q_state: weights of q in the product with the state, (.., C, 1 or d).
        k_state: weights of k in the update of the state, (.., C, 1 or d).
        state: the decay of the state over a chunk, (.., 1 or d, 1).
        read: weights of the state in the product with q, (.., d, 1).
        update: weights of the update of the state, (.., d, 1).
    """

    products: list[tuple[Tensor, Tensor | None, Tensor | None]]
    q: Tensor | None = None
    k: Tensor | None = None
    q_state: Tensor | None = None
    k_state: Tensor | None = None
    state: Tensor | None = None
    read: Tensor | None = None
    update: Tensor | None = None

    @classmethod
    def create(cls, log_decay, size, device, dtype):
        """Returns the weights for constant log decays (H, 1), (H, d) or (1, d), or without decay (None)."""
        i = torch.arange(size, device=device)
        ones = torch.ones(size, size, device=device, dtype=dtype).tril()
        if log_decay is None:
            return cls([(ones, None, None)])
        log_decay = log_decay.detach().to(dtype)
        rate, i = log_decay[:, None, None], i[:, None]
        if log_decay.size(-1) > 1:
            return cls._of_features(
                ones, torch.exp(rate * (i - size // 2)), rate[..., 0, :], rate[..., 0, :] * size
            )
        return cls(
            [(torch.exp(rate * (i - i.T).clamp(min=0)).tril(), None, None)],
            q_state=torch.exp(rate * (i + 1)),
            k_state=torch.exp(rate * (size - 1 - i)),
            state=torch.exp(log_decay * size)[:, None, :, None],
        )

    @classmethod
    def of_positions(cls, log_decay):
        """Returns the weights of decays of single positions (sequences, H, chunks, C, 1 or d)."""
        sums = log_decay.cumsum(-2)
        last = sums[..., -1:, :]
        if sums.size(-1) > 1:
            products = block_products(sums)
            if len(products) == 1:
                [(mask, q, _)] = products
                return cls._of_features(mask, q, sums[..., 0, :], last[..., 0, :])
        else:
            # The exponential of pairs above the diagonal, which can be infinite, is replaced by 0.
            products = [((sums - sums.mT).exp_().tril_(), None, None)]
        weights = {"q_state": sums.exp(), "k_state": (last - sums).exp_(), "state": last.exp().mT}
        return cls(products, **weights)

    @classmethod
    def _of_features(cls, mask, q, first, last):
        """Returns the weights of one product, from those of q and the first and last sum of log decays."""
        first, last = (x.exp()[..., None] for x in (first, last))
        read, update = first / q[..., 0, :, None], q[..., -1, :, None]
        return cls([(mask, None, None)], q, q.reciprocal(), state=last, read=read, update=update)


@dataclass(frozen=True)
class _Part:
    """A part of the input whose chunks are processed at the same time.

    Attributes:
        sequences: slice of the batch dimension.
        heads: slice of the heads.
        start: index of the first row.
        chunks: number of consecutive chunks.
        size: rows of each chunk.
        constant_weights: decay weights of each chunk, or None for decays of single positions.
    """

    sequences: slice
    heads: slice
    start: int
    chunks: int
    size: int
    constant_weights: _Weights | None

    def weights(self, log_decay):
        return self.constant_weights or _Weights.of_positions(self.view(log_decay))

    @property
    def shape(self):
        """The shape (sequences, H, chunks)."""
        return -1, self.heads.stop - self.heads.start, self.chunks

    def view(self, x):
        """Returns this part of x (B, H, L, d) as a view (sequences, H, chunks, size, d)."""
        rows = x[self.sequences, self.heads, self.start : self.start + self.chunks * self.size]
        return rows.unflatten(2, (self.chunks, self.size))

    def read(self, x, dtype=None, weight=None):
        """Returns weight ∘ this part of x (B, H, L, d) as (sequences·H·chunks, size, d)."""
        view, dtype = self.view(x), dtype or x.dtype
        if weight is None and dtype == x.dtype:
            return view.flatten(0, 2)
        rows = torch.empty(view.shape, dtype=dtype, device=x.device)
        rows = rows.copy_(view) if weight is None else torch.mul(view, weight, out=rows)
        return rows.flatten(0, 2)

    def write(self, x, rows, weight=None):
        """Writes weight ∘ rows (sequences·H·chunks, size, d) into this part of x (B, H, L, d)."""
        rows = rows.unflatten(0, self.shape)
        self.view(x).copy_(rows if weight is None else rows.mul_(weight))

    def scale(self, rows, weight):
        """Returns weight ∘ rows; a weight of None means 1."""
        if weight is None:
            return rows
        return (rows.unflatten(0, self.shape) * weight).flatten(0, 2)

    def add_product(self, total, a, b, weight):
        """Returns ``total`` + weight ∘ (a b), computed in place."""
        return total.baddbmm_(a, b) if weight is None else total.add_(self.scale(torch.bmm(a, b), weight))

    def scores(self, q, k, products):
        """Returns the weighted products of q and k inside chunks, (sequences·H·chunks, C, C)."""
        total = None
        for mask, a, b in products:
            part = self.weight_pairs_(torch.bmm(self.scale(q, a), self.scale(k, b).mT), mask)
            total = part if total is None else total.add_(part)
        return total

    def scores_backward(self, g_scores, q, k, products, g_q, g_k):
        """Adds the gradients of :meth:`scores` to those of q and k, in place; ``g_scores`` is overwritten."""
        for number, (mask, a, b) in enumerate(products, start=1):
            g = self.weight_pairs_(g_scores if number == len(products) else g_scores.clone(), mask)
            self.add_product(g_q, g, self.scale(k, b), a)
            self.add_product(g_k, g.mT, self.scale(q, a), b)

    def weight_pairs_(self, scores, mask):
        """Multiplies the scores inside chunks by M in place."""
        scores.unflatten(0, self.shape).mul_(mask)
        return scores

    def scan(self, total, updates, weights, backwards=False):
        """Adds the updates of all chunks to a running total, which decays at each chunk.

        Args:
            total: running total (B, H, d, dv), modified in place.
            updates: the update of each chunk (sequences·H·chunks, d, dv), modified in place.
            weights: the weights of the chunks.
            backwards: whether to go from the last chunk to the first.

        Returns:
            The weighted totals before each chunk's update (sequences·H·chunks, d, dv).
        """
        total = total[self.sequences, self.heads]
        updates = updates.unflatten(0, self.shape)
        factors = weights.state, weights.read, weights.update
        decay, read, update = (x.mT if x is not None and total.size(-2) == 1 else x for x in factors)
        if backwards:
            read, update = update, read
        if update is not None:
            updates.mul_(update)
        if decay is not None:
            decay = decay.expand(*decay.shape[:-3], self.chunks, -1, -1)
        few = updates.device.type == "cpu" or self.chunks <= _MIN_CHUNKS
        # torch.compile does not support `out=` with a part of a tensor.
        scan = _scan_by_chunk if few and not torch.compiler.is_compiling() else _scan_by_block
        totals = scan(total, updates, decay, backwards)
        return (totals if read is None else totals.mul_(read)).flatten(0, 2)


def _scan_by_chunk(total, updates, decay, backwards):
    """Computes :meth:`_Part.scan` for updates (sequences, H, chunks, d, dv), with one addition per chunk.

    On a CPU, this is faster than cumsum, which reads and writes element by element.
    """
    totals = torch.empty_like(updates)
    steps = [x.unbind(-3)[:: -1 if backwards else 1] for x in (totals, updates, decay) if x is not None]
    rows = steps[0]
    rows[0].copy_(total)
    for row, update, *decays, next_row in zip(*steps, (*rows[1:], total), strict=True):
        if decays:
            torch.addcmul(update, row, *decays, out=next_row)
        else:
            torch.add(row, update, out=next_row)
    return totals


def _scan_by_block(total, updates, decay, backwards):
    """Computes :meth:`_Part.scan` with one matrix product per block of chunks.

    On a GPU, an addition for one chunk takes less time than its start.
    """
    parts, totals = [x.split(_CHUNKS_PER_BLOCK, dim=-3) for x in (updates, decay) if x is not None], []
    for block, *decays in list(zip(*parts, strict=True))[:: -1 if backwards else 1]:
        if decays:  # a decay that is rounded to 0 counts as the smallest number
            logs = decays[0].clamp(min=torch.finfo(block.dtype).tiny).log().flatten(-2)
        else:
            logs = block.new_zeros(block.size(2), 1)
        # Differences of sums; (.., K, 1 + chunks), where K is 1 or the number of features.
        c = F.pad(to_float64(logs.mT).cumsum(-1), (1, 0))
        if backwards:
            weights, first = (c[..., None, :-1] - c[..., None]).to(block).exp().triu(), c[..., -1:] - c
        else:
            weights, first = (c[..., None] - c[..., None, 1:]).to(block).exp().tril(-1), c
        first = first.to(block).exp()
        shape = logs.size(-1), -1
        sums = weights @ block.flatten(3).unflatten(3, shape).transpose(2, 3)
        sums.addcmul_(first[..., None], total.flatten(2).unflatten(2, shape).unsqueeze(3))
        sums = sums.transpose(2, 3).flatten(3).unflatten(3, total.shape[2:])
        totals.append(sums[:, :, 1:] if backwards else sums[:, :, :-1])
        total.copy_(sums[:, :, 0] if backwards else sums[:, :, -1])
    return torch.cat(totals[:: -1 if backwards else 1], dim=2)


class _ChunkCausal(torch.autograd.Function):
    """Autograd function of :func:`chunk_causal`.

    Inputs are q and k (B, H, L, d), v (B, H, L, dv), and the state (B, H, d, dv) and (B, H, d). Results are
    the output and the new state. The output and the gradients have the memory layout of v, q and k, so
    that merging the heads into (L, B, H·d) needs no copy. ``g_x`` is the gradient of ``x``.
    """

    @staticmethod
    def forward(ctx, q, k, v, kv, k_sum, log_decay, groups, args):
        dtype, normalize, eps = args.dtype, args.normalize, args.eps
        needs_k_sum = normalize or args.return_state
        first_kv, first_k_sum, kv, k_sum = kv, k_sum, kv.clone(), k_sum.clone()
        totals = k_sum.unsqueeze(2)  # a view
        out = torch.empty_like(v, dtype=dtype)
        denominator = kv.new_empty(*q.shape[:3], 1) if normalize else None
        needs_grad = any(ctx.needs_input_grad)

        def process(part):
            w = part.weights(log_decay)
            qs, ks, vs = part.read(q, dtype, w.q), part.read(k, dtype, w.k), part.read(v, dtype)
            q_state, k_state = part.scale(qs, w.q_state), part.scale(ks, w.k_state)
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

        states = run(lambda parts: [process(part) for part in parts], groups)
        states = chain.from_iterable(chain.from_iterable(states)) if needs_grad else ()
        ctx.groups, ctx.args, ctx.needs_k_sum = groups, args, needs_k_sum
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
            return *plain_gradients(functools.partial(_plain, ctx.args), inputs, gradients), None, None

    @staticmethod
    def _backward(ctx, g_out, g_last_kv, g_last_k_sum):
        q, k, v, log_decay, out, denominator, first_kv, first_k_sum, kv, k_sum, *states = ctx.saved_tensors
        dtype, normalize, eps = ctx.args.dtype, ctx.args.normalize, ctx.args.eps
        # The gradient of the decay is a difference of large numbers, so it needs those of q and k in float32.
        g_q, g_k = (torch.empty_like(x, dtype=dtype if ctx.needs_input_grad[5] else None) for x in (q, k))
        g_v, g_kv, g_k_sum = torch.empty_like(v), g_last_kv.clone(), g_last_k_sum.clone()
        g_totals = g_k_sum.unsqueeze(2)  # a view

        def process(part, past_kv, past_k):
            w = part.weights(log_decay)
            qs, ks = part.read(q, dtype, w.q), part.read(k, dtype, w.k)
            vs, g_o = part.read(v, dtype), part.read(g_out, dtype)
            q_state, k_state = part.scale(qs, w.q_state), part.scale(ks, w.k_state)
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
            g_qs, g_ks = part.scale(g_q_state, w.q_state), part.scale(g_k_state, w.k_state)
            part.scores_backward(g_scores, qs, ks, w.products, g_qs, g_ks)
            part.write(g_q, g_qs, w.q)
            part.write(g_k, g_ks, w.k)
            del g_scores, g_q_state, g_k_state, g_qs, g_ks
            scores = part.scores(qs, ks, w.products)
            part.write(g_v, torch.bmm(scores.mT, g_o).baddbmm_(k_state, g_next_kv))

        states = iter(states)
        groups = [[(part, next(states), next(states)) for part in parts] for parts in ctx.groups]
        run(lambda parts: [process(*part) for part in reversed(parts)], groups)

        g_log_decay = None
        if ctx.needs_input_grad[5]:
            ends = (first_kv, g_kv, first_k_sum, g_k_sum), (kv, g_last_kv, k_sum, g_last_k_sum)
            g_log_decay = _log_decay_gradient(log_decay, q * g_q - k * g_k, *ends)
        return g_q.to(q.dtype), g_k.to(k.dtype), g_v, g_kv, g_k_sum, g_log_decay, None, None


def _log_decay_gradient(log_decay, rows, first, last):
    """Returns the gradient of the decay from q ∘ g_q − k ∘ g_k (B, H, L, d) and the states at both ends.

    The weight of query i and key j is a factor exp(c_i) of q_i times a factor exp(−c_j) of k_j, where c are
    sums of log decays. The initial state counts as a key at position -1, and the final state as a query at
    position L - 1.
    """
    first, last = ((kv * g_kv).sum(3) + k_sum * g_k_sum for kv, g_kv, k_sum, g_k_sum in (first, last))
    if log_decay.size(-1) == 1:
        rows, first, last = (x.sum(-1, keepdim=True) for x in (rows, first, last))
    rows = to_float64(rows)
    first, last, length = first.to(rows), last.to(rows), rows.size(2)
    if log_decay.dim() > 2:
        # The decay at position n is a term of c_i for all i ≥ n.
        sums = rows.cumsum(2)
        return (rows - sums).add_(sums[:, :, -1:] + last[:, :, None]).to(log_decay)
    i = torch.arange(length, device=rows.device, dtype=rows.dtype)
    gradient = torch.einsum("bhid,i->bhd", rows, i) + first + (length - 1) * last
    return gradient.sum(0).sum_to_size(log_decay.shape).to(log_decay)
