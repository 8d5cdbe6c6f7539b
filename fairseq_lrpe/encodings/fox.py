"""Forget gates: decays that depend on the input (FoX)."""

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import InputsMixin
from fairseq_lrpe.encodings.rope import RoPE
from fairseq_lrpe.ops.precision import at_least_float32


class ForgetGate(InputsMixin, Encoding):
    """Base class of encodings with a forget gate, whose logarithm is the last of the input features.

    The gate of head h at position t is f_t = σ(w_h·x_t + b_h), where x is the layer's input. As in the
    authors' code, w is initialized from N(0, 0.02²) and b to 0, so that all gates are about 1/2. Logarithms
    and their sums are computed in float32 or float64.
    """

    def __init__(self, *, no_bias: bool = False, **shared):
        super().__init__(**shared)
        self.gate = nn.Linear(self.num_heads * self.head_dim, self.num_heads, bias=not no_bias)
        nn.init.normal_(self.gate.weight, std=0.02)
        if not no_bias:
            nn.init.zeros_(self.gate.bias)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns log f (B, H, n, 1); a subclass with other features puts them before it."""
        log_gates = F.logsigmoid(at_least_float32(self.gate(x[:, self.left_context :])))
        return log_gates.transpose(1, 2)[..., None]

    def log_decay(self, context: Context = START) -> Tensor | None:
        return context.input_features()[..., -1]


@register_encoding("fox", no_bias="use a forget gate without bias")
class FoX(ForgetGate):
    """Decays by a gate of each head that depends on the input (Forgetting Transformer, Lin et al. 2025).

    With f_t = σ(w_h·x_t + b_h), softmax attention adds Σ_{l=j+1..i} log f_l to the scaled score of query i
    and key j, and linear attention multiplies q_i·k_j by Π_{l=j+1..i} f_l, as gated retention and Mamba-2 do.
    The method ``cable`` (Veisi et al. 2025) adds Σ_{l=j+1..i} −softplus(w_h·x_l), which is the same without b
    and with the opposite sign of w.

    Gates take O(L E) time per head, and the scores of softmax attention O(L²) additions.
    """


@register_encoding("fox_rope", no_bias="use a forget gate without bias")
class FoXRoPE(ForgetGate, RoPE):
    """FoX with RoPE's rotation of q and k (Lin et al. 2025)."""
