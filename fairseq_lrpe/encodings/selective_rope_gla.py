"""Selective RoPE with the gates of GLA."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.gla import RANK as GATE_RANK
from fairseq_lrpe.encodings.gla import TEMPERATURE, FeatureGate
from fairseq_lrpe.encodings.selective_rope import GATE_HELP, SelectiveRoPE

_RANK = 32
_INIT_STD = 0.02
"""Rank of the angles, and standard deviation of all initial weights, as in the authors' experiments."""


@register_encoding("selective_rope_gla", gate=GATE_HELP)
class SelectiveRoPEGLA(FeatureGate, SelectiveRoPE):
    """Rotates by selective RoPE and decays each feature by GLA's gates (Movahedi et al. 2025).

    The encoding is that of the paper's main model. As in the authors' code (timurcarstensen/selective-rope),
    angles have rank 32 and an input that is normalized per head, all weights are initialized from N(0,
    0.02²), and gates apply to the rotated features. The method has no feature map, q/√d and an RMSNorm of
    each head, like the authors' layer, whose output gate is not included.

    The two features of a pair have different gates, which do not commute with the rotation. Unlike with
    selective RoPE alone, the score of a query and a key therefore also depends on the sum of the angles
    before the key.

    Gates and angles take O(L E) time in addition to the products with their matrices of low rank.
    """

    left_context = SelectiveRoPE.left_context
    uses_absolute_positions = True

    def __init__(self, *, gate: bool = False, **shared):
        super().__init__(gate=gate, rank=_RANK, init_std=_INIT_STD, normalize_heads=True, **shared)
        width = self.num_heads * self.head_dim
        self.decay_in = nn.Linear(width, GATE_RANK, bias=False)
        self.decay_out = nn.Linear(GATE_RANK, width)
        nn.init.normal_(self.decay_in.weight, std=_INIT_STD)
        nn.init.normal_(self.decay_out.weight, std=_INIT_STD)
        nn.init.zeros_(self.decay_out.bias)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns the angles φ (d/2) and the logarithms of the gates (d) as features (B, H, n, d/2 + d)."""
        angles = SelectiveRoPE.input_features(self, x)
        logits = self.decay_out(self.decay_in(x[:, self.left_context :]))
        return torch.cat([angles, self.log_gates(logits) / TEMPERATURE], dim=-1)
