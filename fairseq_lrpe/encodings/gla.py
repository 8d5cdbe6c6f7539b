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

INIT_STD_HELP = "standard deviation of the gates' initial weights (0: initial values of nn.Linear)"


class FeatureGate(InputsMixin, Encoding):
    """Base class of encodings with a gate of each feature, whose logarithms are the last d input features.

    Linear attention replaces q_i·k_j by Σ_m q_im k_jm Π_{l=j+1..i} α_lm, where α_lm is the gate of feature m
    at position l. Softmax attention uses the same products, divided by √d, as scores. This takes O(L² d)
    time, and torch's fused kernels cannot be used.
    """

    def log_gates(self, logits: Tensor) -> Tensor:
        """Returns log σ(logits) (B, H, n, d) for logits (B, n, H·d)."""
        gates = F.logsigmoid(at_least_float32(logits))
        return gates.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def log_decay(self, context: Context = START) -> Tensor | None:
        return context.input_features()[..., -self.head_dim :]


@register_encoding("gla", init_std=INIT_STD_HELP)
class GLA(FeatureGate):
    """Decays each feature by a gate that depends on the input (Yang et al. 2024, Section 4.4).

    The gates of position t are α_t = σ(W₂ W₁ x_t + b)^(1/16), where x is the layer's input and W₁ has rank
    16. By default, initial values are those of ``nn.Linear``. With ``init_std``, W₁ and W₂ are initialized
    from N(0, init_std²) and b to 0, as in the models of flash-linear-attention (0.02), so that all gates
    start at 0.958; in the authors' first code, W₁ and W₂ had Xavier's uniform distribution with gain 2^-2.5.

    The method has the feature map and LayerNorm of the other methods. Those of the paper's layer are the
    method ``gla_published``: no feature map, q/√d and an RMSNorm of each head; the output gate is not
    included. Gates take O(L E) time.
    """

    def __init__(self, *, init_std: float = 0.0, **shared):
        super().__init__(**shared)
        width = self.num_heads * self.head_dim
        self.w_in = nn.Linear(width, RANK, bias=False)
        self.w_out = nn.Linear(RANK, width)
        if init_std:
            nn.init.normal_(self.w_in.weight, std=init_std)
            nn.init.normal_(self.w_out.weight, std=init_std)
            nn.init.zeros_(self.w_out.bias)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns log α (B, H, n, d)."""
        return self.log_gates(self.w_out(self.w_in(x))) / TEMPERATURE
