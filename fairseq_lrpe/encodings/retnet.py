"""The encoding of RetNet's retention."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("retnet")
class RetNet(RoPE):
    """Turns q and k as RoPE does, under the decay γ_h = 1 − 2^(−5−h), h = 0..H−1.

    (RetNet, Sun et al. 2023, Eqs. 5 and 8.) So pairs weigh γ_h^(i−j) e^{iθ(i−j)}. This is the encoding alone:
    retention's gate, and its normalisation of each head, are none of it. In softmax attention (i−j)·log γ_h
    is added to the scores, as every decay is. No parameters; O(L d).
    """

    bidirectional = False

    @property
    def log_decay(self) -> Tensor | None:
        heads = torch.arange(self.num_heads, dtype=torch.float64)
        return torch.log1p(-(2.0 ** (-5 - heads)))
