"""RoPE-Mixed: rotary position embedding with learned angles for each axis of an image."""

import math

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rotation import RotaryEncoding
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.position_index import PositionIndex, coordinates
from fairseq_lrpe.ops.precision import sum_dtype
from fairseq_lrpe.ops.rotation import complex_dtype, rotary_angles

_BASE = 10.0
"""Base of the initial angles of an image, as in the public code."""


@register_encoding("rope_mixed")
class RoPEMixed(RotaryEncoding):
    """Rotates the pair (x_2t, x_2t+1) at row r and column c by r·θ_0t + c·θ_1t (Heo et al. 2024).

    The angles θ are learned for each layer, head and pair, so that each pair has its own direction in the
    image. Scores depend only on the differences of rows and of columns. In a sequence, where positions have
    one coordinate, the angle is s·θ_0t.

    As in the authors' code (naver-ai/rope-vit, deit/models_v2_rope.py), the initial angles of an image are
    10^(−4m/d) (cos φ, sin φ), m < d/4, with a random φ per head for the first half of the pairs, and φ + π/2
    for the second half. Those of a sequence are RoPE's 10000^(−2t/d). The authors' models have no absolute
    position embeddings by default, and a class token, which they do not rotate; the models here have no
    class token.

    The authors use softmax attention. The method's linear attention has a LayerNorm instead of a denominator,
    which learned rotations make negative.

    The parameter ``theta`` is (axes, H, d/2). Encoding takes O(L d) time.

    Raises:
        ValueError: if d is not a multiple of 2, or of 4 for an image.
    """

    rotated_features = "pairs"
    multidimensional = True
    float32_parameters = ("theta",)

    def __init__(self, **shared):
        super().__init__(**shared)
        heads = self.num_heads
        d = self.head_dim
        if self.axes > 2:
            raise ValueError(f"rope_mixed has angles for 1 or 2 coordinates, not {self.axes}: use liere")
        if d % (2 * self.axes):
            raise ValueError(
                f"rope_mixed rotates pairs of features: head_dim must be a multiple of {2 * self.axes} in "
                f"{'a sequence' if self.axes == 1 else 'an image'}, not {d}"
            )
        if self.axes == 1:
            theta = rotary_angles("a", d // 2, d, self.max_positions).expand(1, heads, -1)
        else:
            size = _BASE ** (-4 * torch.arange(d // 4) / d)
            phi = 2 * math.pi * torch.rand(heads, 1)
            direction = torch.cat([phi.expand(-1, d // 4), (phi + math.pi / 2).expand(-1, d // 4)], dim=1)
            theta = size.repeat(2) * torch.stack([direction.cos(), direction.sin()])
        dtype = sum_dtype(torch.get_default_dtype())
        self.theta = nn.Parameter(torch.empty(theta.shape, dtype=dtype).copy_(theta))

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        """Returns the phases (H, L, d/2) of the positions of x (B, H, L, d)."""
        position = coordinates(offset, x.size(-2), x.device)
        # The angles are computed in float64, as for RoPE.
        theta = to_float64(self.theta)
        scaling = self.scaling_at(offset, x.size(-2))
        theta = theta if scaling is None else scaling.scale(theta, self.head_dim)
        angles = torch.einsum("la,aht->hlt", position, theta)
        return torch.polar(torch.ones_like(angles), angles).to(x.device, complex_dtype(x))
