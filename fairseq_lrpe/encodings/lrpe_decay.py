"""LRPE with a decay."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.lrpe import LRPE


@register_encoding("lrpe_decay")
class LRPEDecay(LRPE):
    """Turns q and k as unitary LRPE with learned angles, under λ = e^(−(8h/H)(1 − l/L)) (LRPE-d).

    h = 1..H is the head, l = 1..L the layer: pairs weigh λ^(i−j) e^{iθ(i−j)}, and the last layer has no decay
    (TransNormerLLM, Qin et al. 2023, Section 3.1). Its public code has ALiBi's slopes 2^(−8h/H) in the place
    of 8h/H; here the paper's formula holds. O(L d), at a width of 2d.
    """

    bidirectional = False

    def __init__(self, **shared):
        super().__init__(core="unitary", rotation="identity", learn_theta=True, **shared)

    @property
    def log_decay(self) -> Tensor | None:
        heads = torch.arange(1, self.num_heads + 1, dtype=torch.float64)
        return -8 * heads / self.num_heads * (1 - self.layer / self.layers)
