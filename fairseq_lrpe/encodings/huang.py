"""The four relative encodings of Huang et al."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.position_index import is_consecutive
from fairseq_lrpe.ops.relative import distance_table, expand_distances


def clipped_index(distance: Tensor, k: int, signed: bool) -> Tensor:
    """Returns k plus the distance clipped to −k..k, or its absolute value clipped to k if not ``signed``."""
    return k + distance.clamp(-k, k) if signed else distance.abs().clamp(max=k)


@register_encoding(
    "huang",
    k="clipping distance of Huang's encoding",
    method="method of Huang's encoding: a scalar of the absolute (1) or signed (2) distance multiplies the "
    "scores, or a vector of the distance multiplies the features (3) or is added to queries and keys (4)",
)
class Huang(ScoresMixin, Encoding):
    """Combines queries and keys with a learned scalar or vector of their distance (Huang et al. 2020).

    The scaled scores of the paper's methods 1 to 4 are, with the learned a and x = clip(i−j, k):

        1   q_i·k_j a_|x| / √d                      a is a scalar
        2   q_i·k_j a_x / √d                        a is a scalar
        3   Σ_t q_it k_jt a_xt / √d                 a is a vector (d,)
        4   (q_i·k_j + q_i·a_x + k_j·a_x) / √d      a is a vector (d,)

    Method 4 is (q_i + a_x)·(k_j + a_x) without a_x·a_x. In causal attention, methods 1 and 2 are the same.
    The LRPE papers (TMLR Eq. 7) cite Huang et al. for a scalar that is added to the scores, which is the form
    of ``t5`` and of none of the four methods.

    ``a`` is (k+1, 1) in method 1, (2k+1, 1) in method 2, and (2k+1, d) in methods 3 and 4. All heads share
    it, as in the first author's code for method 4 (huggingface/transformers, pull request 8276,
    ``relative_key_query``), which has 2·512 − 1 vectors. The default k here is that of ``shaw``. The initial
    values are ours: 1 in methods 1 to 3, which start as attention without positions, and those of ``shaw`` in
    method 4.

    Methods 1 and 2 cost O(L²) multiplications. Method 4 takes O(L·k·d) time for products with a, and O(L²)
    for gathering the scores. Method 3 takes O(L·k·d) time and memory for pairs at most k apart, and O(L²·d)
    time for all others, one product of queries and keys for each direction. If positions are not consecutive,
    it takes O(L²·k·d) time.

    Raises:
        ValueError: for k below 1 or an unknown method.
    """

    decomposable = False
    uses_distance_table = True

    def __init__(self, *, k: int = 16, method: int = 4, **shared):
        super().__init__(**shared)
        if k < 1 or method not in (1, 2, 3, 4):
            raise ValueError(
                "huang needs a clipping distance k of at least 1 and a method from 1 to 4, "
                f"not k {k} and method {method}"
            )
        self.k = k
        self.method = method
        rows = k + 1 if method == 1 else 2 * k + 1
        width = 1 if method < 3 else self.head_dim
        self.a = nn.Parameter(torch.ones(rows, width))
        if method == 4:
            nn.init.xavier_uniform_(self.a)

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
        if self.method == 4:
            return None
        products = self._products_with_vectors if self.method == 3 else self._products_with_scalars
        return products(q, k, context.q_offset)

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        return (k * self.scale) @ self.a.mT if self.method == 4 else None

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        index = self._index(q, k, context.q_offset)
        key_products = context.prepared
        of_queries = ((q * self.scale) @ self.a.mT).gather(-1, index.expand(*q.shape[:2], -1, -1))
        of_keys = key_products[:, :, : k.size(-2)].gather(-1, index.mT.expand(*k.shape[:2], -1, -1))
        return of_queries + of_keys.mT

    def _products_with_scalars(self, q, k, q_offset):
        scalars = self.a[self._table(q, k, q_offset), 0].to(q.dtype)
        return (self.scale * q) @ k.mT * expand_distances(scalars, q.size(-2), k.size(-2), q_offset)

    def _products_with_vectors(self, q, k, q_offset):
        q, a, index = self.scale * q, self.a.to(q.dtype), self._index(q, k, q_offset)
        if not is_consecutive(q_offset):
            scores = q.new_zeros(())
            for n, vector in enumerate(a):
                scores = torch.where(index == n, (q * vector) @ k.mT, scores)
            return scores
        # Between the clipping distances, a query and a row of ``a`` belong to only one key.
        queries = q.size(-2)
        first = self.k if self.causal else 0
        last = self.k + min(self.k, self.clamp_length or self.k)
        near_keys = F.pad(k, (0, 0, self.k - q_offset, q_offset + queries + self.k - k.size(-2)))
        near = [
            (q * near_keys[..., 2 * self.k - n : 2 * self.k - n + queries, :]) @ a[n]
            for n in range(first, last + 1)
        ]
        index = index.clamp(min=first)
        scores = torch.stack(near, dim=-1).gather(-1, (index - first).expand(*q.shape[:2], -1, -1))
        for n in {last} if self.causal else {0, last}:
            scores = torch.where(index == n, (q * a[n]) @ k.mT, scores)
        return scores

    def _table(self, q, k, q_offset):
        """Returns the index (W,) of the row of ``a`` for each distance."""
        distances = q.size(-2), k.size(-2), q_offset, self.causal, q.device
        return distance_table(clipped_index, (self.k, self.method > 1), *distances, clamp=self.clamp_length)

    def _index(self, q, k, q_offset):
        """Returns the index (Lq, Lk) of the row of ``a`` for each pair of a query and a key."""
        return expand_distances(self._table(q, k, q_offset), q.size(-2), k.size(-2), q_offset)
