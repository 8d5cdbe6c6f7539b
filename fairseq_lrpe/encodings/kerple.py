"""KERPLE's logarithmic and power biases."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.distance_bias import DistanceBias

MIN_VALUE = 0.01
MAX_POWER = 2.0
"""Lower bound of both parameters, and upper bound of the power, as in the authors' code."""


@register_encoding("kerple", power="use the power variant of KERPLE's bias instead of the logarithmic one")
class KERPLE(DistanceBias):
    """Adds −r₁ log(1 + r₂ |i−j|) to the scaled scores, or −r₁ |i−j|^r₂ with ``power`` (Chi et al. 2022).

    r₁ and r₂ are the learned parameters ``bias_p`` and ``bias_a`` (H,) in the logarithmic variant, and
    ``bias_a`` and ``bias_p`` in the power variant, as in the authors' code (chijames/KERPLE,
    ``ParallelKerpleLog`` and ``ParallelKerplePower``). ``bias_p`` and ``bias_a`` are initialized uniformly in
    (0, 2) and (0, 1). Values below 0.01, and powers above 2, are replaced by these limits. The authors' code
    overwrites such parameters before each use; here they are clamped in the formula, so that the parameters
    stay unchanged. The cost is that of :class:`DistanceBias`.
    """

    float32_parameters = ("bias_p", "bias_a")

    def __init__(self, *, power: bool = False, **shared):
        super().__init__(**shared)
        self.power = power
        self.bias_p = nn.Parameter((2 * torch.rand(self.num_heads)).clamp(min=MIN_VALUE))
        self.bias_a = nn.Parameter(torch.rand(self.num_heads).clamp(min=MIN_VALUE))

    def values(self, distance: Tensor) -> Tensor:
        p, a = (x.to(distance.dtype).clamp(min=MIN_VALUE)[:, None] for x in (self.bias_p, self.bias_a))
        if self.power:
            # torch's second derivative of 0^p is not a number.
            return -a * distance.sign() * distance.clamp(min=1) ** p.clamp(max=MAX_POWER)
        return -p * (a * distance).log1p()
