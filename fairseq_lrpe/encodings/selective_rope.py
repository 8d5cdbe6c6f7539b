"""Selective RoPE: rotations by angles that depend on the input."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.fox import BIAS_HELP, NO_BIAS_HELP, ForgetGate
from fairseq_lrpe.encodings.mixins import InputsMixin
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options, to_float64
from fairseq_lrpe.ops.normalization import unit_vectors
from fairseq_lrpe.ops.precision import at_least_float32
from fairseq_lrpe.ops.rotation import complex_dtype, rotate_pairs

RANK = 16
KERNEL_SIZE = 4
BASE = 500_000.0
"""Rank of the linear layer, size of the convolution and base of the temperatures, as in the paper."""

_GATE_HELP = "multiply selective RoPE's angles by a gate of each head"


@register_encoding("selective_rope", gate=_GATE_HELP)
class SelectiveRoPE(InputsMixin, Encoding):
    """Rotates feature pairs by sums of angles that depend on the input (Movahedi et al. 2025).

    The pair (y_2m, y_2m+1) of q and k at position t is rotated by τ_m Σ_{s≤t} φ_sm, where τ_m is
    500000^(−2m/d). φ is a causal depthwise convolution over 4 positions, without bias or activation, of
    W₂ W₁ x_s/‖x_s‖, where x is the layer's input and W₁ has rank 16. With ``gate``, φ_s is multiplied by
    σ(w_h·x_s/‖x_s‖ + b_h). Each head has its own angles, and padding has the angle 0. Initial values
    are those of torch's layers, as in the authors' code.

    Sums of angles are computed in float64. Decoding stores the last three inputs and the sum of all angles.
    The encoding takes O(L d) time in addition to the products with W₁ and W₂.
    """

    bidirectional = False
    rotated_features = "pairs"
    left_context = KERNEL_SIZE - 1

    def __init__(self, *, gate: bool = False, **shared):
        super().__init__(**shared)
        if self.head_dim % 2:
            raise ValueError(
                f"{self.name} rotates pairs of features: head_dim must be even, not {self.head_dim}"
            )
        width = self.num_heads * self.head_dim
        angles = self.num_heads * self.head_dim // 2
        self.w_in = nn.Linear(width, RANK, bias=False)
        self.w_out = nn.Linear(RANK, angles, bias=False)
        self.convolution = nn.Parameter(torch.empty(KERNEL_SIZE, angles))
        nn.init.uniform_(self.convolution, -(KERNEL_SIZE**-0.5), KERNEL_SIZE**-0.5)
        self.angle_gate = nn.Linear(width, self.num_heads) if gate else None

    def input_features(self, x: Tensor) -> Tensor:
        """Returns φ (B, H, n, d/2)."""
        x = unit_vectors(at_least_float32(x)).to(x.dtype)
        y = self.w_out(self.w_in(x))
        length = x.size(1) - self.left_context
        phi = sum(y[:, t : t + length] * row for t, row in enumerate(self.convolution))
        phi = at_least_float32(phi).unflatten(-1, (self.num_heads, -1))
        if self.angle_gate is not None:
            phi = phi * self.angle_gate(x[:, self.left_context :]).sigmoid()[..., None]
        return phi.transpose(1, 2)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        half = self.head_dim // 2
        angles = to_float64(context.input_features()[..., :half]).cumsum(2)
        if context.feature_sum is not None:
            angles = angles + context.feature_sum[..., :half]
        angles = angles * constant(_temperatures, half, device=angles.device, dtype=angles.dtype)
        table = torch.polar(torch.ones_like(angles), angles).to(k.device, complex_dtype(k))
        return rotate_pairs(q, table[:, :, k.size(2) - q.size(2) :]), rotate_pairs(k, table)


def _temperatures(count, device):
    """Returns τ (count,)."""
    return BASE ** (-torch.arange(count, **float64_options(device)) / count)


@register_encoding("selective_rope_fox", gate=_GATE_HELP, no_bias=NO_BIAS_HELP, bias=BIAS_HELP)
class SelectiveRoPEFoX(ForgetGate, SelectiveRoPE):
    """Selective RoPE with FoX's forget gate: both rotation and decay depend on the input."""

    left_context = SelectiveRoPE.left_context

    def __init__(self, *, gate: bool = False, no_bias: bool = False, bias: float = 0.0, **shared):
        super().__init__(gate=gate, no_bias=no_bias, bias=bias, **shared)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns φ and log f (B, H, n, d/2 + 1)."""
        angles = SelectiveRoPE.input_features(self, x)
        return torch.cat([angles, ForgetGate.input_features(self, x)], dim=-1)
