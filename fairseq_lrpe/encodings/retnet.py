"""The encoding of RetNet's retention."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("retnet")
class RetNet(RoPE):
    """RoPE with the decay γ_h = 1 − 2^(−5−h), h = 0..H−1 (RetNet, Sun et al. 2023, Eqs. 5 and 8).

    Pairs are weighted by γ_h^(i−j) e^{iθ(i−j)}. Only the encoding is implemented, without retention's gate
    and its normalization per head. In softmax attention (i−j)·log γ_h is added to the scores, as for every
    decay. No parameters; O(L d).
    """

    bidirectional = False

    @property
    def log_decay(self) -> Tensor | None:
        heads = torch.arange(self.num_heads, dtype=torch.float64)
        return torch.log1p(-(2.0 ** (-5 - heads)))
