"""Shaw's relative position representations."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.relative import distance_table, expand_distances


def level(distance: Tensor, k: int, width: int, rounding: str) -> Tensor:
    """Returns the index of the vector of each distance x, which is k plus x/width, rounded and clipped to ±k.

    With width 1, this is Eq. 4 of Shaw et al. ``rounding`` is "floor" or "away" (from zero).
    """
    result = torch.div(distance, width, rounding_mode="floor")
    if rounding == "away":
        result = torch.where(distance > 0, -torch.div(-distance, width, rounding_mode="floor"), result)
    return k + result.clamp(-k, k)


@register_encoding(
    "shaw",
    k="clipping distance of Shaw's encoding, which has 2k + 1 vectors",
    values="add relative position representations to the values, too, in Shaw's encoding",
    per_head="use separate vectors for each head in Shaw's encoding",
)
class Shaw(Encoding):
    """Adds q_i·w_{clip(i−j, k)} / √d to the scaled scores (Shaw et al. 2018; LFHC paper Eqs. 4-5).

    With ``values``, Σ_j a_ij w'_{clip(i−j, k)} is added to the output (survey Eq. 5). ``w_k.weight`` and
    ``w_v.weight`` contain w and w' (2k+1, d), which all heads share as in Shaw et al., or (2k+1, H·d) if
    ``per_head``. Products of q with all vectors take O(L·k·d) time, and gathering the scores from them O(L²);
    with ``values``, summing the weights by distance takes O(L²) time.
    """

    decomposable = False
    uses_distance_table = True
    width = 1
    """Number of distances that share one vector."""
    rounding = "floor"
    """How a distance divided by the width is rounded, "floor" or "away" (from zero)."""

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

    def _split_heads(self, vectors):
        """Returns the vectors as (2k+1, d), or (H, 2k+1, d) if ``per_head``."""
        weight = vectors.weight
        return weight.unflatten(1, (self.num_heads, -1)).transpose(0, 1) if self.per_head else weight

    def _levels(self, queries, keys, q_offset, like):
        """Returns the vector index of each pair (B, H, Lq, Lk), with B, H and the device of ``like``."""
        options = (self.k, self.width, self.rounding)
        distances = queries, keys, q_offset, self.causal, like.device
        table = distance_table(level, options, *distances, clamp=self.clamp_length)
        return expand_distances(table, queries, keys, q_offset).expand(*like.shape[:2], queries, keys)

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor:
        scores = (q @ self._split_heads(self.w_k).mT) * self.scale
        return scores.gather(-1, self._levels(q.size(-2), k.size(-2), q_offset, q))

    def output_from_weights(self, weights: Tensor, q_offset: int = 0) -> Tensor:
        levels = self._levels(*weights.shape[-2:], q_offset, weights)
        sums = weights.new_zeros(*weights.shape[:3], 2 * self.k + 1)
        return sums.scatter_add(-1, levels, weights) @ self._split_heads(self.w_v)
