"""The bias of the Gaussian Transformer."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.distance_bias import DistanceBias


@register_encoding("gaussian")
class Gaussian(DistanceBias):
    """Adds −|w (i−j)² + b| to the scaled scores, w ≥ 0 and b ≤ 0 (Gaussian Transformer, Guo et al. 2019).

    Without b, the bias multiplies the weights, before they are normalized, by a Gaussian function of the
    distance with variance 1/(2w). b reduces the weight of the query's own position. "A Survey of
    Transformers" (Lin et al. 2021, Eq. 21) has the same formula.

    w and b are learned scalars of the layer, which all heads share. Absolute values of the parameters enforce
    their signs, because clamped parameters would get no gradient. The initial values are ours: w = 0.01, a
    standard deviation of 7 positions, and b = −0.1. The cost is that of :class:`DistanceBias`.
    """

    float32_parameters = ("w", "b")

    def __init__(self, **shared):
        super().__init__(**shared)
        self.w = nn.Parameter(torch.tensor([0.01]))
        self.b = nn.Parameter(torch.tensor([-0.1]))

    def values(self, distance: Tensor) -> Tensor:
        w, b = (x.to(distance.dtype).abs() for x in (self.w, self.b))
        return -(w * distance**2 - b).abs().unsqueeze(0)
