"""The rotation of Mamba-3."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.accumulated_rotation import AccumulatedRotation
from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.ops.precision import at_least_float32

_SMALLEST_STEP = 1e-3
_LARGEST_STEP = 0.1
"""Range of the initial steps, as in Mamba's code."""


@register_encoding("mamba3_rope")
class Mamba3RoPE(AccumulatedRotation):
    """Rotates by sums of steps and angular velocities that depend on the input (Mamba-3, Lahoti et al. 2026).

    The pair (x_2t, x_2t+1) of q and k at position i is rotated by Σ_{s≤i} Δ_s π tanh(a_t·x_s), where x is the
    layer's input and the step Δ_s = softplus(w_h·x_s + b_h) belongs to the head. The heads share a. As in the
    public code (state-spaces/mamba, mamba_ssm/ops/triton/mamba3/angle_dt.py), initial steps exp(u) are
    log-uniform from 0.001 to 0.1. Mamba-3's decay, its trapezoidal rule, and its features without a rotation
    are not included.

    Mamba-3's state-space model with complex states is linear attention with this rotation and a decay; LRPE's
    unitary core is its form with constant velocities.
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.num_heads * self.head_dim
        self.velocity = nn.Linear(width, self.head_dim // 2, bias=False)
        self.step = nn.Linear(width, self.num_heads)
        low = math.log(_SMALLEST_STEP)
        high = math.log(_LARGEST_STEP)
        steps = torch.empty(self.num_heads).uniform_(low, high).exp()
        with torch.no_grad():
            self.step.bias.copy_(steps.expm1().log())  # the inverse of softplus

    def input_features(self, x: Tensor) -> Tensor:
        """Returns the angles Δ π tanh(a·x) by which each token turns (B, H, n, d/2)."""
        velocity = math.pi * torch.tanh(at_least_float32(self.velocity(x)))
        # As softplus, which torch.compile cannot differentiate before a transposition.
        step = -F.logsigmoid(-at_least_float32(self.step(x))).transpose(1, 2)
        return step[..., None] * velocity[:, None]

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        return self.rotate(q, k, self.sums(context, self.head_dim // 2))
