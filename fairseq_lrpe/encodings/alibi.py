"""Attention with linear biases."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, register_encoding


@register_encoding("alibi")
class ALiBi(Encoding):
    """Adds −m_h·(i−j) to the scaled scores, m_h = 2^(−8h/H), h = 1..H (Press et al. 2022, Section 3).

    In linear attention the same weights are the decay e^(−m_h(i−j)). The paper's slopes are these where H is
    a power of two; for other H its code takes slopes of the nearest power, and here the formula holds.
    No parameters; O(L²) additions in softmax attention and nothing more in linear attention.
    """

    bidirectional = False

    @property
    def log_decay(self) -> Tensor | None:
        heads = torch.arange(1, self.num_heads + 1, dtype=torch.float64)
        return -(2.0 ** (-8 * heads / self.num_heads))
