"""Parts of the input of causal linear attention that fit a core's cache; see :mod:`.causal`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_lrpe.ops.decay import block_products, gated_block_size, stable_block_size
from fairseq_lrpe.ops.threads import split

_ELEMENTS = 2**18
"""Number of elements of q processed at once, which fit a core's cache."""


def default_chunk_size(d: int, dv: int) -> int:
    """Returns the number of rows C of a chunk.

    Products inside a chunk cost C² (d + dv), and products with the state C d dv.
    """
    return 64 if d + dv >= 128 else 32  # fastest of 16, 32, .., 256 on a CPU, measured for six widths


def split_input(
    q: Tensor, v: Tensor, log_decay: Tensor | None, chunk_size: int | None, dtype: torch.dtype
) -> list[list["Part"]]:
    """Splits the batch and the heads into groups, which are processed at the same time.

    Returns the parts of each group, in the order in which they are processed: as many full chunks as fit at a
    time, and the remaining rows.
    """
    length, d = q.shape[2:]
    size = max(1, min(chunk_size or default_chunk_size(d, v.size(-1)), length))
    if log_decay is not None and log_decay.size(-1) > 1:
        if log_decay.size(2) == 1:
            size = stable_block_size(log_decay, size)
        elif chunk_size is None:
            size = gated_block_size(log_decay, size)
    groups = []
    weights = None
    for sequences, heads in split(q):
        if log_decay is None or log_decay.size(2) == 1:
            decay = None
            if log_decay is not None:
                decay = log_decay.reshape(log_decay.size(1), -1)
                decay = decay[heads] if len(decay) > 1 else decay
            lengths = {size, length % size} - {0}
            weights = {n: PartWeights.create(decay, n, q.device, dtype) for n in lengths}
        max_chunks = max(1, _ELEMENTS // ((heads.stop - heads.start) * size * max(d, v.size(-1))))
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
            count, rows = shape
            parts.append(Part(own, heads, start, count, rows, weights and weights[rows]))
            start += count * rows
    return parts


@dataclass(frozen=True)
class PartWeights:
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
        read: weights of the state in the product with q, where ``q`` already weights q relative to the middle
            of the chunk, (.., d, 1).
        update: weights of the update of the state, where ``k`` already weights k likewise, (.., d, 1).
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
        rate = log_decay[:, None, None]
        i = i[:, None]
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
        products: list[tuple[Tensor, Tensor | None, Tensor | None]]
        if sums.size(-1) > 1:
            products = [*block_products(sums)]
            if len(products) == 1:
                [(mask, q, _)] = products
                return cls._of_features(mask, q, sums[..., 0, :], last[..., 0, :])
        else:
            # The exponential of pairs above the diagonal, which can be infinite, is replaced by 0.
            products = [((sums - sums.mT).exp_().tril_(), None, None)]
        weights = {"q_state": sums.exp(), "k_state": (last - sums).exp_(), "state": last.exp().mT}
        return cls(products, **weights)

    @classmethod
    def _of_features(cls, mask, q, first_sum, last_sum):
        """Returns the weights of chunks with a single product, for decays of features.

        Args:
            mask: M (C, C).
            q: weights of q (.., C, d); those of k are their reciprocals.
            first_sum: log decay from the start of a chunk to its first row (.., d).
            last_sum: sum of the log decays from the start of a chunk to its last row (.., d).
        """
        first, last = (x.exp()[..., None] for x in (first_sum, last_sum))
        read = first / q[..., 0, :, None]
        update = q[..., -1, :, None]
        return cls([(mask, None, None)], q, q.reciprocal(), state=last, read=read, update=update)


@dataclass(frozen=True)
class Part:
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
    constant_weights: PartWeights | None

    def weights(self, log_decay):
        return self.constant_weights or PartWeights.of_positions(self.view(log_decay))

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
        view = self.view(x)
        dtype = dtype or x.dtype
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
        totals = _scan(total, updates, decay, backwards)
        return (totals if read is None else totals.mul_(read)).flatten(0, 2)


def _scan(total, updates, decay, backwards):
    """Computes :meth:`Part.scan` for updates (sequences, H, chunks, d, dv), with one addition per chunk.

    This is faster than cumsum, which reads and writes element by element.
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
