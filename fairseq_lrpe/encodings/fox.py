"""Forget gates: decays that depend on the input (FoX)."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import InputsMixin
from fairseq_lrpe.encodings.rope import RoPE
from fairseq_lrpe.ops.precision import at_least_float32
from fairseq_lrpe.ops.rope_scaling import ROPE_BASE


class ForgetGate(InputsMixin, Encoding):
    """Base class of encodings with a forget gate, whose logarithm is the last of the input features.

    The gate of head h at position t is f_t = σ(w_h·x_t + b_h), where x is the layer's input. w is initialized
    from N(0, 0.02²) and b to ``bias``. By default, ``bias`` is 0, as in the authors' code: all gates start at
    about 1/2, so that a key ten positions back has the weight 0.001. With 5, they start at 0.993, and that
    key has the weight 0.935. With ``no_bias``, b is not learned, but remains ``bias``.

    Logarithms and their sums are computed in float32 or float64.

    Raises:
        ValueError: if ``bias`` is not finite.
    """

    def __init__(self, *, no_bias: bool = False, bias: float = 0.0, **shared):
        super().__init__(**shared)
        if not math.isfinite(bias):
            raise ValueError(f"{self.name} needs a finite bias of its forget gate, not {bias}")
        self.gate = nn.Linear(self.num_heads * self.head_dim, self.num_heads, bias=not no_bias)
        nn.init.normal_(self.gate.weight, std=0.02)
        if not no_bias:
            nn.init.constant_(self.gate.bias, bias)
        self._constant_bias = bias if no_bias else 0.0

    def input_features(self, x: Tensor) -> Tensor:
        """Returns log f (B, H, n, 1); a subclass with further features puts them before log f."""
        logits = at_least_float32(self.gate(x[:, self.left_context :]))
        if self._constant_bias:
            logits = logits + self._constant_bias
        return F.logsigmoid(logits).transpose(1, 2)[..., None]

    def log_decay(self, context: Context = START) -> Tensor | None:
        return context.input_features()[..., -1]


NO_BIAS_HELP = "do not learn the bias of the forget gate"
BIAS_HELP = "initial bias of the forget gate; with 5, gates start at 0.993 instead of 1/2"


@register_encoding("fox", no_bias=NO_BIAS_HELP, bias=BIAS_HELP)
class FoX(ForgetGate):
    """Decays by a gate of each head that depends on the input (Forgetting Transformer, Lin et al. 2025).

    With f_t = σ(w_h·x_t + b_h), softmax attention adds Σ_{l=j+1..i} log f_l to the scaled score of query i
    and key j, and linear attention multiplies q_i·k_j by Π_{l=j+1..i} f_l, as gated retention and Mamba-2 do.
    The method ``cable`` (Veisi et al. 2025) adds Σ_{l=j+1..i} −softplus(w_h·x_l), which is the same without b
    and with the opposite sign of w.

    Gates take O(L E) time per head, and the scores of softmax attention O(L²) additions.
    """


@register_encoding("fox_rope", no_bias=NO_BIAS_HELP, bias=BIAS_HELP)
class FoXRoPE(ForgetGate, RoPE):
    """FoX with RoPE's rotation of q and k (Lin et al. 2025); the base of the authors' models is 500,000."""

    def __init__(self, *, no_bias: bool = False, bias: float = 0.0, base: float = ROPE_BASE, **shared):
        super().__init__(no_bias=no_bias, bias=bias, base=base, **shared)
