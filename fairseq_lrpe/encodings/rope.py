"""Rotary position embedding (RoPE)."""

from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rotation import RotaryEncoding
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rotation import cached_phases, complex_dtype


@register_encoding("rope")
class RoPE(RotaryEncoding):
    """Rotates the pair (x_2t, x_2t+1) at position s by s·10000^(-2t/d), t < d/2 (Su et al. 2021, Eq. 15).

    The encoding has no parameters and takes O(L d) time.
    """

    rotated_features = "pairs"

    def __init__(self, **shared):
        super().__init__(**shared)
        if self.head_dim % 2:
            raise ValueError(
                f"{self.name} rotates pairs of features: head_dim must be even, not {self.head_dim}"
            )
        self.pairs = self.head_dim // 2  # number of rotated pairs, which are the first ones

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        length = x.size(-2)
        frequencies = "a", self.pairs, self.head_dim, self.max_positions, self.scaling_at(offset, length)
        return cached_phases(frequencies, offset, length, complex_dtype(x), x.device)
