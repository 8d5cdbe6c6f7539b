"""LRPE with a decay (LRPE-d)."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.lrpe import LRPE


@register_encoding("lrpe_decay")
class LRPEDecay(LRPE):
    """Unitary LRPE with learned angles and the decay λ = e^(−(8h/H)(1 − l/L)) of head h in layer l.

    It is the encoding of TransNormerLLM (Qin et al. 2023, Section 3.1). With h = 1..H and l = 1..L, the
    product of query i and key j is weighted by λ^(i−j), which is 1 in the last layer. The public code uses
    ALiBi's slopes 2^(−8h/H) instead of 8h/H; here the paper's formula is used. Encoding takes O(L d) time and
    doubles the width of q and k.
    """

    bidirectional = False

    def __init__(self, **shared):
        super().__init__(core="unitary", rotation="identity", learn_theta=True, **shared)

    @property
    def log_decay(self) -> Tensor | None:
        heads = torch.arange(1, self.num_heads + 1, dtype=torch.float64, device="cpu")
        return -8 * heads / self.num_heads * (1 - self.layer / self.layers)
