"""Shaw's relative position representations."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import ValuesMixin
from fairseq_lrpe.ops.layers import embedding_rows
from fairseq_lrpe.ops.relative import distance_table, expand_distances


def level(distance: Tensor, k: int, k_after: int, width: int, rounding: str) -> Tensor:
    """Returns the index of the vector of each distance x: x/width, rounded and clipped, plus ``k_after``.

    The quotient is clipped to −k_after..k. With width 1 and k_after = k, this is Eq. 4 of the LFHC paper.
    ``rounding`` is "floor" or "away" (from zero).
    """
    result = torch.div(distance, width, rounding_mode="floor")
    if rounding == "away":
        result = torch.where(distance > 0, -torch.div(-distance, width, rounding_mode="floor"), result)
    return k_after + result.clamp(-k_after, k)


@register_encoding(
    "shaw",
    k="clipping distance of Shaw's encoding, which has k + k_after + 1 vectors",
    k_after="clipping distance of Shaw's encoding for keys after the query; -1 means k",
    values="add relative position representations to the values, too, in Shaw's encoding",
    per_head="use separate vectors for each head in Shaw's encoding",
)
class Shaw(ValuesMixin, Encoding):
    """Adds q_i·w_{clip(i−j, k)} / √d to the scaled scores (Shaw et al. 2018; LFHC paper Eqs. 4-5).

    With ``values``, Σ_j a_ij w'_{clip(i−j, k)} is added to the output (Su 2021, Eq. 5). ``w_k.weight`` and
    ``w_v.weight`` contain w and w' (2k+1, d), which all heads share as in Shaw et al., or (2k+1, H·d) if
    ``per_head``. With ``k_after``, distances are clipped to −k_after..k (Su 2021, Eq. 6, p_min = −k_after
    and p_max = k), and there are k_after + k + 1 vectors. Causal attention uses only the k + 1 vectors of the
    distances 0..k.

    Products of q with all vectors take O(L·k·d) time, and gathering the scores from them O(L²); with
    ``values``, summing the weights by distance takes O(L²) time.

    Raises:
        ValueError: for k below 1, or k_after below −1.
    """

    decomposable = False
    uses_distance_table = True
    width = 1
    """Number of distances that share one vector."""
    rounding = "floor"
    """How a distance divided by the width is rounded, "floor" or "away" (from zero)."""

    def __init__(
        self, *, k: int = 16, k_after: int = -1, values: bool = False, per_head: bool = False, **shared
    ):
        super().__init__(**shared)
        if k < 1:
            raise ValueError(f"{self.name} needs a clipping distance k of at least 1, not {k}")
        if k_after < -1:
            raise ValueError(f"{self.name} needs a k_after of at least 0, or -1 to use k, not {k_after}")
        self.k = k
        self.k_after = k if k_after == -1 else k_after
        self.per_head = per_head
        self.needs_weights = values
        self._create_vectors()

    def _create_vectors(self):
        self.w_k = self._embedding()
        if self.needs_weights:
            self.w_v = self._embedding()

    def _embedding(self):
        width = self.head_dim * (self.num_heads if self.per_head else 1)
        vectors = nn.Embedding(self.k_after + self.k + 1, width)
        for part in vectors.weight.split(self.head_dim, dim=1):
            nn.init.xavier_uniform_(part)
        return vectors

    def _vectors(self, name, like):
        """Returns all n vectors of ``name``, "w_k" or "w_v", as (n, d), or as (H, n, d) if ``per_head``.

        Vectors that are not parameters have the device and dtype of ``like``.
        """
        weight = embedding_rows(getattr(self, name), self.k_after + self.k + 1, like.device)
        return weight.unflatten(1, (self.num_heads, -1)).transpose(0, 1) if self.per_head else weight

    def _levels(self, queries, keys, q_offset, like):
        """Returns the vector index of each pair (B, H, Lq, Lk), with B, H and the device of ``like``."""
        options = (self.k, self.k_after, self.width, self.rounding)
        distances = queries, keys, q_offset, self.causal, like.device
        table = distance_table(level, options, *distances, clamp=self.clamp_length)
        return expand_distances(table, queries, keys, q_offset).expand(*like.shape[:2], queries, keys)

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        scores = (q @ self._vectors("w_k", q).mT) * self.scale
        return scores.gather(-1, self._levels(q.size(-2), k.size(-2), context.q_offset, q))

    def decode_output(self, o: Tensor, context: Context = START, weights: Tensor | None = None) -> Tensor:
        if weights is None:
            return o
        queries, keys = weights.shape[-2:]
        levels = self._levels(queries, keys, context.q_offset, weights)
        sums = weights.new_zeros(*weights.shape[:3], self.k_after + self.k + 1)
        return o + sums.scatter_add(-1, levels, weights) @ self._vectors("w_v", weights)
