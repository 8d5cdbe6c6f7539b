"""The contextual rotation of GRAPE."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.accumulated_rotation import AccumulatedRotation
from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.precision import Float32Parameters, at_least_float32
from fairseq_lrpe.ops.rotation import rotary_angles

_INITIAL_STEP = 1e-3
"""Step of all tokens at the start, so that attention starts nearly without positions."""


@register_encoding("grape")
class GRAPE(AccumulatedRotation):
    """RoPE whose positions are sums of steps that depend on the input (Zhang et al. 2025b).

    The pair (x_2t, x_2t+1) of q and k at position i is rotated by θ_t Σ_{s<i} softplus(w·x_s + b), where x is
    the layer's input. All heads share the steps and the learned angles θ, initially 10000^(−2t/d). As in the
    authors' code (model-architectures/GRAPE, model/llama-mha-grape-m-ctx.py), w starts at 0, and b at steps
    of 0.001, a thousandth of RoPE's. With steps of 1 and these angles, it is RoPE.

    The parameter ``angles.log_theta`` (d/2,) has the logarithms of the angles. The encoding takes O(L d)
    time.
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        self.step = nn.Linear(self.num_heads * self.head_dim, 1)
        nn.init.zeros_(self.step.weight)
        nn.init.constant_(self.step.bias, math.log(math.expm1(_INITIAL_STEP)))  # the inverse of softplus
        self.angles = _Angles(rotary_angles("a", self.head_dim // 2, self.head_dim, self.max_positions))

    def input_features(self, x: Tensor) -> Tensor:
        """Returns the step of each token (B, H, n, 1)."""
        # As softplus, which torch.compile cannot differentiate before a transposition.
        step = -F.logsigmoid(-at_least_float32(self.step(x)))
        return step[:, None].expand(-1, self.num_heads, -1, -1)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        sums = self.sums(context, 1) - to_float64(context.input_features())
        return self.rotate(q, k, sums * self.angles().to(sums))


class _Angles(Float32Parameters):
    """Learned positive angles θ (n,), in a module of its own because FSDP gathers parameters by module."""

    float32_parameters = ("log_theta",)

    def __init__(self, theta: Tensor):
        super().__init__()
        log_theta = torch.empty(theta.shape, dtype=torch.float32)  # on the default device
        self.log_theta = nn.Parameter(log_theta.copy_(theta.log()))

    def forward(self) -> Tensor:
        """Returns θ in float64."""
        return to_float64(self.log_theta).exp()
