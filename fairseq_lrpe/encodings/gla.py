"""The gates of gated linear attention (GLA)."""

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import InputsMixin
from fairseq_lrpe.ops.precision import at_least_float32

RANK = 16
TEMPERATURE = 16
"""Rank of the linear layer that computes the gates, and the divisor of their logarithms, as in the paper."""


@register_encoding("gla")
class GLA(InputsMixin, Encoding):
    """Decays each feature by a gate that depends on the input (Yang et al. 2024, Section 4.4).

    The gates of position t are α_t = σ(W₂ W₁ x_t + b)^(1/16), where x is the layer's input and W₁ has rank
    16. Linear attention replaces q_i·k_j by Σ_m q_im k_jm Π_{l=j+1..i} α_lm, and softmax attention uses the
    same products, divided by √d, as scores. The initial values are those of ``nn.Linear``, as in the authors'
    code. The paper's output gate is not included.

    Gates take O(L E) time. Softmax attention takes O(L² d) time and cannot use torch's fused kernels.
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.num_heads * self.head_dim
        self.w_in = nn.Linear(width, RANK, bias=False)
        self.w_out = nn.Linear(RANK, width)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns log α (B, H, n, d)."""
        logits = at_least_float32(self.w_out(self.w_in(x)))
        return F.logsigmoid(logits).div(TEMPERATURE).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def log_decay(self, context: Context = START) -> Tensor | None:
        return context.input_features()
