"""The gates of wall attention."""

from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.gla import FeatureGate

_BIAS = 8.0
"""Initial bias: gates start at 0.9997, so that attention starts nearly without positions."""


@register_encoding("wall")
class Wall(FeatureGate):
    """Decays each feature by a gate of full rank in softmax attention (Averbuch and Pai 2026).

    The score of query i and key j is Σ_m q_im k_jm Π_{l=j+1..i} σ(w_m·x_l + b_m) / √d, where x is the layer's
    input. As in flash-linear-attention (fla/layers/wall_attn.py), w is initialized from N(0, 0.02²) and b to
    8. The optional output gate, norms of q and k, and second gate of each head are not included.

    The scores are those of GLA's gates in softmax attention, with another formula of the gates. Gates take
    O(L E²) time.
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.num_heads * self.head_dim
        self.gate = nn.Linear(width, width)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, _BIAS)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns the logarithms of the gates (B, H, n, d)."""
        return self.log_gates(self.gate(x))
