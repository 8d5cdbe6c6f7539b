"""Rotary position embedding (RoPE)."""

import math

from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rotation import RotaryEncoding
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rope_scaling import ROPE_BASE
from fairseq_lrpe.ops.rotation import cached_phases, complex_dtype


@register_encoding("rope", base="base of the angles of rotations, 10000 in the paper")
class RoPE(RotaryEncoding):
    """Rotates the pair (x_2t, x_2t+1) at position s by s·base^(-2t/d), t < d/2 (Su et al. 2021, Eq. 15).

    The base is 10,000 in the paper, and larger in models of long texts, such as 500,000. The encoding has no
    parameters and takes O(L d) time.

    Raises:
        ValueError: for an odd head dimension, or a base that is not above 1.
    """

    rotated_features = "pairs"

    def __init__(self, *, base: float = ROPE_BASE, **shared):
        super().__init__(**shared)
        if not 1 < base < math.inf:
            raise ValueError(f"{self.name} needs a base above 1, such as 10000, not {base}")
        self.base = base
        if self.head_dim % 2:
            raise ValueError(
                f"{self.name} rotates pairs of features: head_dim must be even, not {self.head_dim}"
            )
        self.pairs = self.head_dim // 2  # number of rotated pairs, which are the first ones

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        length = x.size(-2)
        scaling = self.scaling_at(offset, length)
        angle_arguments = "a", self.pairs, self.head_dim, self.max_positions, scaling, self.base
        return cached_phases(angle_arguments, offset, length, complex_dtype(x), x.device)
