"""Axial RoPE: rotary position embedding of the rows and columns of an image."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rotation import RotaryEncoding
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.position_index import PositionIndex, coordinates
from fairseq_lrpe.ops.rotation import complex_dtype


@register_encoding("axial_rope", base="base of axial RoPE's angles")
class AxialRoPE(RotaryEncoding):
    """Rotates half of the pairs of features by the column of a patch, and half by its row (Heo et al. 2024).

    For m < d/4, the pair m is rotated by c·base^(−4m/d), and the pair d/4 + m by r·base^(−4m/d), where r is
    the row and c the column. The base is 100, as in the authors' code (naver-ai/rope-vit,
    deit/models_v2_rope.py); their RoPE-Mixed learns the angles instead.

    With n coordinates, d/2n pairs are rotated by each, from the last coordinate to the first, with the angles
    base^(−2nm/d); in a sequence, this is RoPE with the base 100. The encoding has no parameters and takes
    O(L d) time. Its angles cannot be scaled.

    Raises:
        ValueError: if d is not a multiple of 2n, or ``base`` is below 1.
    """

    multidimensional = True
    scalable = False
    rotated_features = "pairs"

    def __init__(self, *, base: float = 100.0, **shared):
        super().__init__(**shared)
        if self.head_dim % (2 * self.axes):
            raise ValueError(
                f"axial_rope rotates pairs of features by {self.axes} coordinates: head_dim must be a "
                f"multiple of {2 * self.axes}, not {self.head_dim}"
            )
        if not base >= 1:
            raise ValueError(f"axial_rope needs a base of at least 1, not {base}")
        self.base = base

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        """Returns the phases (L, d/2) of the positions of x (B, H, L, d)."""
        position = coordinates(offset, x.size(-2), x.device)
        pairs = self.head_dim // (2 * self.axes)  # of each coordinate
        theta = constant(_angles, pairs, self.base, **float64_options(position.device))
        angles = (position.flip(-1)[..., None] * theta).flatten(-2)
        return torch.polar(torch.ones_like(angles), angles).to(x.device, complex_dtype(x))


def _angles(pairs, base, device):
    """Returns the angles per position (pairs,)."""
    return base ** (-torch.arange(pairs, **float64_options(device)) / pairs)
