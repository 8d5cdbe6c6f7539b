"""PoPE: polar coordinate position embedding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.rotation import RotaryEncoding
from fairseq_lrpe.encodings.table import position_tables
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rotation import cached_phases, complex_dtype, complex_features, rotate_halves


@register_encoding("pope")
class PoPE(RotaryEncoding):
    """Multiplies positive features by complex phases of the position (Gopalakrishnan et al. 2025).

    The product of query i and key j is

        Σ_t softplus(q_it) softplus(k_jt) cos((j−i) θ_t + δ_ht),  t < d,

    with θ_t = 10000^(−t/d). The phases δ are learned for each head, limited to [−2π, 0], and initially 0, as
    in lucidrains/PoPE-pytorch. RoPE rotates pairs of features, so that the angle of a pair also depends on
    the content. Here, the content determines the magnitude only, and the position the angle only.

    PoPE is LRPE with the unitary core, without a reflection, on softplus features, with other angles and the
    phases δ. Linear attention applies the softplus here, too, so that the method has the feature map
    ``identity``; its LayerNorm replaces the denominator, because products can be negative.

    The parameter ``delta`` is (H, d). Encoding takes O(L d) time and doubles the width of q and k.
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        self.delta = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        """Returns the phases (L, d) of the positions of x (B, H, L, d)."""
        length = x.size(-2)
        width = 2 * self.head_dim  # so that the angles 10000^(−2t/width) are 10000^(−t/d)
        angle_arguments = "a", self.head_dim, width, self.max_positions, self.scaling_at(offset, length)
        return cached_phases(angle_arguments, offset, length, complex_dtype(x), x.device)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        self.check_keys(q, k, context)
        q_table, k_table = position_tables(self.position_table, q, k, context)
        delta = self.delta.to(k_table.real.dtype).clamp(-2 * math.pi, 0)
        k_phase = torch.polar(torch.ones_like(delta), delta)[:, None]
        q = complex_features(_softplus(q), q_table).to(q.dtype)
        k = complex_features(_softplus(k), k_table * k_phase).to(k.dtype)
        return self.with_attention_factor(q, k)

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        self.check_shift()
        return rotate_halves(k, self.position_table(k[:, :, :1], shift).conj())


def _softplus(x):
    # torch.compile cannot differentiate softplus of a transposed tensor.
    return F.softplus(x.contiguous())
