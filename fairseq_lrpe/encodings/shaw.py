"""Shaw's relative position representations."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.relative import distance_table, spread


def level(distance: Tensor, k: int, width: int, rounding: str) -> Tensor:
    """Returns k + x/width, rounded and clipped to ±k, for x = i − j; with width 1 it is Shaw's, Eq. 4.

    ``rounding`` is "floor", or "away" from zero.
    """
    below = torch.div(distance, width, rounding_mode="floor")
    if rounding == "away":
        below = torch.where(distance > 0, -torch.div(-distance, width, rounding_mode="floor"), below)
    return k + below.clamp(-k, k)


@register_encoding(
    "shaw",
    k="distance from which on Shaw's representations are the same",
    values="Shaw's representations of the values too",
    per_head="Shaw's representations are each head's own",
)
class Shaw(Encoding):
    """Adds q_i·w_{clip(i−j, k)} / √d to the scaled scores (Shaw et al. 2018; LFHC paper Eqs. 4-5).

    With ``values`` the output gets Σ_j a_ij w'_{clip(i−j, k)} as well (survey Eq. 5). The vectors are
    shared by the heads, as Shaw et al. do, or with ``per_head`` each head's own. q meets the 2k+1 vectors
    once, O(L·k·d), and the scores are gathered from that, O(L²); with ``values`` the weights are summed by
    distance in O(L²).
    """

    decomposable = False
    by_distance = True
    width = 1
    """How many distances share one vector."""
    rounding = "floor"
    """How a distance that is no multiple of the width becomes one."""

    def __init__(self, *, k: int = 16, values: bool = False, per_head: bool = False, **shared):
        super().__init__(**shared)
        if k < 1:
            raise ValueError(f"{self.name} needs a clipping distance k of at least 1, not {k}")
        self.k = k
        self.per_head = per_head
        self.w_k = self._vectors()
        self.needs_weights = values
        if values:
            self.w_v = self._vectors()

    def _vectors(self):
        vectors = nn.Embedding(2 * self.k + 1, self.head_dim * (self.num_heads if self.per_head else 1))
        for part in vectors.weight.split(self.head_dim, dim=1):
            nn.init.xavier_uniform_(part)
        return vectors

    def _of_heads(self, vectors):
        """(2k+1, d), or each head's (H, 2k+1, d)."""
        weight = vectors.weight
        return weight.unflatten(1, (self.num_heads, -1)).transpose(0, 1) if self.per_head else weight

    def _levels(self, queries, keys, q_offset, like):
        """The vector of each pair, (B, H, Lq, Lk)."""
        options = (self.k, self.width, self.rounding)
        distances = queries, keys, q_offset, self.causal, like.device
        table = distance_table(level, options, *distances, clamp=self.clamp_length)
        return spread(table, queries, keys, q_offset).expand(*like.shape[:2], queries, keys)

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor:
        by_level = (q @ self._of_heads(self.w_k).mT) * self.scale
        return by_level.gather(-1, self._levels(q.size(-2), k.size(-2), q_offset, q))

    def values_from_weights(self, weights: Tensor, q_offset: int = 0) -> Tensor:
        levels = self._levels(*weights.shape[-2:], q_offset, weights)
        by_level = weights.new_zeros(*weights.shape[:3], 2 * self.k + 1)
        return by_level.scatter_add(-1, levels, weights) @ self._of_heads(self.w_v)
