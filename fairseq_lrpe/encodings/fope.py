"""FoPE: Fourier position embedding."""

import math

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.table import TableEncoding
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.position_index import PositionIndex, coordinates
from fairseq_lrpe.ops.rotation import complex_dtype, rotary_angles, rotate_pairs


@register_encoding(
    "fope",
    sigma="gain σ of the random coefficients of FoPE's Fourier series",
    length="length N of training sequences (0: the model's maximum length); FoPE uses only frequencies of at "
    "least 2π/N",
)
class FoPE(TableEncoding):
    """Multiplies the pair (x_2t, x_2t+1), as a complex number, by a Fourier series (Hua et al. 2025, Eq. 13).

    At position s, the factor of a pair with the frequency ω_t = 10000^(-2t/d) is

        f_t(s) = cos(s ω_t) + Σ_u a_tu cos(s ω_u) + i (sin(s ω_t) + Σ_u b_tu sin(s ω_u))

    where u runs over all pairs with ω_u ≥ 2π/N, and N is ``length``, the length of training sequences. Pairs
    with lower frequencies, which do not complete a period in training, have the factor 1. The coefficients a
    and b are drawn for each layer and head, and are not learned. As in the listing of the paper, they have
    Xavier's normal distribution with gain σ for a tensor (H, n, n), where n is the number of these pairs: the
    variance is 2σ²/(n(n + H)). The coefficients and N are stored in the checkpoint, so that evaluations at
    other lengths use the same series.

    A score depends on the absolute positions, because products of different frequencies do. The method's
    linear attention has a LayerNorm instead of a denominator, which these products make negative. The
    encoding has no parameters. Encoding takes O(L d) time for each row of the batch, and computing f takes
    O(L d² H) time.

    Raises:
        ValueError: for an odd head dimension, a negative σ or a negative length.
    """

    uses_absolute_positions = True
    float32_parameters = ("cosine", "sine", "length")
    cosine: Tensor
    sine: Tensor
    length: Tensor

    def __init__(self, *, sigma: float = 0.3, length: int = 0, **shared):
        super().__init__(**shared)
        if self.head_dim % 2 or sigma < 0 or length < 0:
            raise ValueError(
                "fope needs an even head_dim, and a sigma and a length of at least 0, not "
                f"head_dim {self.head_dim}, sigma {sigma} and length {length}"
            )
        pairs = self.head_dim // 2
        length = length or self.max_positions
        self.register_buffer("length", torch.tensor([float(length)]))
        self._angle_arguments = ("a", pairs, self.head_dim, self.max_positions)
        lowest = 2 * math.pi / length
        count = sum(10000 ** (-2 * t / self.head_dim) >= lowest for t in range(pairs))
        size = sigma * (2 / max(1, count * (count + self.num_heads))) ** 0.5
        for name in ("cosine", "sine"):
            noise = size * torch.randn(self.num_heads, pairs, pairs)
            self.register_buffer(name, noise)  # coefficient of frequency u (row) for pair t (column)

    def encode(self, x: Tensor, table: Tensor) -> Tensor:
        return rotate_pairs(x, table)

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        """Returns the factors (H, L, d/2) of the positions of x (B, H, L, d)."""
        position = coordinates(offset, x.size(-2), x.device)
        theta = constant(rotary_angles, *self._angle_arguments, device=position.device, dtype=position.dtype)
        kept = theta >= 2 * math.pi / to_float64(self.length)
        # in float64, as for RoPE
        angles = position * torch.where(kept, theta, 0.0)
        parts = []
        for part, weight in ((angles.cos(), self.cosine), (angles.sin(), self.sine)):
            parts.append(part + part @ (to_float64(weight) * (kept[:, None] & kept)))
        return torch.complex(*parts).to(x.device, complex_dtype(x))
