"""Selective RoPE: rotations by angles that depend on the input."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.accumulated_rotation import AccumulatedRotation
from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.fox import BIAS_HELP, NO_BIAS_HELP, ForgetGate
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.normalization import unit_vectors
from fairseq_lrpe.ops.precision import at_least_float32

KERNEL_SIZE = 4
BASE = 500_000.0
"""Size of the convolution and base of the temperatures, as in the paper."""

GATE_HELP = "multiply selective RoPE's angles by a gate of each head"


@register_encoding(
    "selective_rope",
    gate=GATE_HELP,
    rank="rank of the linear layer that computes selective RoPE's angles",
    init_std="standard deviation of the initial weights (0: initial values of torch's layers)",
    normalize_heads="normalize the part of the input that belongs to each head instead of the whole input",
)
class SelectiveRoPE(AccumulatedRotation):
    """Rotates feature pairs by sums of angles that depend on the input (Movahedi et al. 2025).

    The pair (y_2m, y_2m+1) of q and k at position t is rotated by τ_m Σ_{s≤t} φ_sm, where τ_m is
    500000^(−2m/d). φ is a causal depthwise convolution over 4 positions, without bias or activation, of
    W₂ W₁ x_s/‖x_s‖, where x is the layer's input and W₁ has the given ``rank``. With ``gate``, φ_s is
    multiplied by σ(w_h·x_s/‖x_s‖ + b_h). Each head has its own angles, and padding has the angle 0.

    By default, the rank is 16, and initial values are those of torch's layers, as in the authors' module.
    Their experiments have the rank 32, and their models initialize all weights from N(0, 0.02²)
    (``init_std``), so that angles start 22 to 150 times smaller, nearly without positions. In their code,
    each head's part of x has norm 1 (``normalize_heads``), so that angles are about √H times as large. The
    method ``selective_rope_published`` has these three settings.

    Sums of angles are computed in float64. Decoding stores the last three inputs and the sum of all angles.
    The encoding takes O(L d) time in addition to the products with W₁ and W₂.
    """

    left_context = KERNEL_SIZE - 1

    def __init__(
        self,
        *,
        gate: bool = False,
        rank: int = 16,
        init_std: float = 0.0,
        normalize_heads: bool = False,
        **shared,
    ):
        super().__init__(**shared)
        if rank < 1 or init_std < 0:
            raise ValueError(
                f"{self.name} needs a rank of at least 1 and an init_std of at least 0, not {rank} and "
                f"{init_std}"
            )
        self.normalize_heads = normalize_heads
        width = self.num_heads * self.head_dim
        angles = self.num_heads * self.head_dim // 2
        self.w_in = nn.Linear(width, rank, bias=False)
        self.w_out = nn.Linear(rank, angles, bias=False)
        self.convolution = nn.Parameter(torch.empty(KERNEL_SIZE, angles))
        nn.init.uniform_(self.convolution, -(KERNEL_SIZE**-0.5), KERNEL_SIZE**-0.5)
        self.angle_gate = nn.Linear(width, self.num_heads) if gate else None
        if init_std:
            for weight in (self.w_in.weight, self.w_out.weight, self.convolution):
                nn.init.normal_(weight, std=init_std)
            if self.angle_gate is not None:
                nn.init.normal_(self.angle_gate.weight, std=init_std)
                nn.init.zeros_(self.angle_gate.bias)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns the angles φ (B, H, n, d/2)."""
        x = self._normalized(x)
        y = self.w_out(self.w_in(x))
        length = x.size(1) - self.left_context
        phi = sum(y[:, t : t + length] * row for t, row in enumerate(self.convolution))
        phi = at_least_float32(phi).unflatten(-1, (self.num_heads, -1))
        if self.angle_gate is not None:
            phi = phi * self.angle_gate(x[:, self.left_context :]).sigmoid()[..., None]
        return phi.transpose(1, 2)

    def _normalized(self, x):
        y = at_least_float32(x)
        if self.normalize_heads:
            y = unit_vectors(y.unflatten(-1, (self.num_heads, -1))).flatten(-2)
        else:
            y = unit_vectors(y)
        return y.to(x.dtype)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        half = self.head_dim // 2
        angles = self.sums(context, half)
        temperatures = constant(_temperatures, half, device=angles.device, dtype=angles.dtype)
        return self.rotate(q, k, angles * temperatures)


def _temperatures(count, device):
    """Returns τ (count,)."""
    return BASE ** (-torch.arange(count, **float64_options(device)) / count)


@register_encoding("selective_rope_fox", gate=GATE_HELP, no_bias=NO_BIAS_HELP, bias=BIAS_HELP)
class SelectiveRoPEFoX(ForgetGate, SelectiveRoPE):
    """Selective RoPE with FoX's forget gate: both depend on the input (Movahedi et al. 2025)."""

    left_context = SelectiveRoPE.left_context

    def __init__(self, *, gate: bool = False, no_bias: bool = False, bias: float = 0.0, **shared):
        super().__init__(gate=gate, no_bias=no_bias, bias=bias, **shared)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns φ (B, H, n, d/2) and log f (B, H, n, 1), concatenated in the last dimension."""
        angles = SelectiveRoPE.input_features(self, x)
        return torch.cat([angles, ForgetGate.input_features(self, x)], dim=-1)
