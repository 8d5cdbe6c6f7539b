"""The rows of all chunks of causal linear attention and their products; see :mod:`.all_chunks`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.feature_products import FeatureProducts
from fairseq_lrpe.ops.linear.decay_weights import chunk_weights

ONES = 4
"""Number of columns of ones beside v: one is used, and four keep rows of float32 aligned to 16 bytes."""


class Chunks:
    """The rows of all chunks and their products.

    Args:
        args: arguments of the operation; ``state`` and ``log_decay`` are not used.
        size: number C of rows of a chunk.
        q: queries (B, H, L, d).
        k: keys (B, H, L, d).
        v: values (B, H, L, dv).
        has_initial_state: whether there is an initial state.
        log_decay: as in :class:`Arguments`.
        weights: weights for ``log_decay``, if they are already computed.
    """

    def __init__(self, args, size, q, k, v, has_initial_state, log_decay=None, weights=None):
        self.batch, self.heads, self.length, self.d = q.shape
        self.size = size
        self.count = -(-self.length // size)
        self.dtype = args.dtype
        self.has_initial_state = has_initial_state
        self.has_final_state = args.return_state
        self.has_states = has_initial_state or args.return_state or self.count > 1
        self.needs_sums = args.normalize or has_initial_state or args.return_state
        self.q = self.rows(q)
        self.k = self.rows(k)
        self.weights = weights or chunk_weights(log_decay, size, self.length, self.q)
        self.features: FeatureProducts | None = None
        if self.weights.pairs is None:
            sums = self.weights.sums
            assert sums is not None  # decays of features have sums
            self.features = FeatureProducts(self.by_chunk(self.q), self.by_chunk(self.k), sums)
        self.v = self.rows(_with_ones(v, args.dtype) if self.needs_sums else v)

    def rows(self, x: Tensor) -> Tensor:
        """Returns x (B, H, L, ·) as (B·H·N, C, ·), with zeros after the last row."""
        if x.dtype == self.dtype:
            x = x.contiguous()
        else:
            # Without the memory format, `contiguous` would copy once more.
            x = x.to(self.dtype, memory_format=torch.contiguous_format)
        if padding := self.count * self.size - self.length:
            x = F.pad(x, (0, 0, 0, padding))
        return x.view(self.batch * self.heads * self.count, self.size, x.size(-1))

    def merge(self, rows):
        """Returns rows (B·H·N, C, ·) as (B, H, L, ·)."""
        x = rows.reshape(self.batch, self.heads, self.count * self.size, rows.size(-1))
        return x[:, :, : self.length]

    def by_chunk(self, rows):
        """Returns rows (B·H·N, ·, ·) as (B, H, N, ·, ·)."""
        return rows.unflatten(0, (self.batch, self.heads, self.count))

    def weigh(self, rows, weight):
        """Returns weight ∘ rows, (B·H·N, C, ·); a weight of None means 1."""
        return rows if weight is None else (self.by_chunk(rows) * weight).flatten(0, 2)

    def add_product(self, total, a, b, weight):
        """Adds weight ∘ (a b) to ``total``, in place."""
        if self.features is None:  # the weight of a row is a number
            total.baddbmm_(self.weigh(a, weight), b)
        else:
            total += self.weigh(torch.bmm(a, b), weight)

    def weigh_pairs(self, scores):
        """Returns W ∘ scores, (B·H·N, C, C)."""
        pairs = self.weights.pairs
        assert pairs is not None  # otherwise, there are features
        return scores * pairs if pairs.dim() == 2 else self.weigh(scores, pairs)

    def scores(self):
        """Returns the weighted products of queries and keys, (B·H·N, C, C)."""
        if self.features is not None:
            return self.features.scores().flatten(0, 2)
        return self.weigh_pairs(torch.bmm(self.q, self.k.mT))

    def scores_backward(self, g_scores):
        """Returns the gradients of q and k from that of :meth:`scores`."""
        if self.features is not None:
            return (g.flatten(0, 2) for g in self.features.gradients(self.by_chunk(g_scores)))
        g_scores = self.weigh_pairs(g_scores)
        return torch.bmm(g_scores, self.k), torch.bmm(g_scores.mT, self.q)

    def sum_over_chunks(self, terms, transposed=False):
        """Returns Γ or Γᵀ times the terms of the chunks, (B, H, chunks, d, width).

        The terms also include that of the initial state, before those of the chunks, or that of the final
        state, after them.
        """
        rows = slice(None, None if self.has_final_state else -1)
        columns = slice(None if self.has_initial_state else 1, None)
        weight = self.weights.between[..., rows, columns]
        weight = weight.mT if transposed else weight
        shape = self.d, terms.size(-1)
        if weight.dim() > 2 and weight.size(2) > 1:
            return torch.matmul(weight, terms.transpose(2, 3)).transpose(2, 3)
        weight = weight.squeeze(2) if weight.dim() > 2 else weight
        weight = weight.expand(self.batch, self.heads, -1, -1).flatten(0, 1)
        sums = torch.bmm(weight, terms.flatten(3).flatten(0, 1))
        return sums.unflatten(-1, shape).unflatten(0, (self.batch, self.heads))

    def attend(self, initial):
        """Returns the products with values (B, H, L, width), the states S_n, and the final state."""
        out = torch.bmm(self.scores(), self.v)
        if not self.has_states:
            return self.merge(out), None, None
        terms = self.by_chunk(torch.bmm(self.weigh(self.k, self.weights.update).mT, self.v))
        if initial is not None:
            terms = torch.cat([initial[:, :, None], terms], dim=2)
        sums = self.sum_over_chunks(terms)
        states = sums[:, :, : self.count].flatten(0, 2)
        out = torch.baddbmm(out, self.weigh(self.q, self.weights.read), states)
        return self.merge(out), states, sums[:, :, -1] if self.has_final_state else None


def _with_ones(x, dtype):
    """Returns x (.., n) with columns of ones."""
    ones = constant(torch.ones, ONES, device=x.device, dtype=dtype)
    return torch.cat([x, ones.expand(*x.shape[:-1], ONES)], dim=-1)
