"""The encoding of RetNet's retention."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.rope import RoPE
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options


@register_encoding("retnet")
class RetNet(RoPE):
    """RoPE with the decay γ_h = 1 − 2^(−5−h), h = 0..H−1 (RetNet, Sun et al. 2023, Eqs. 5 and 8).

    Linear attention multiplies the product of query i and key j by γ_h^(i−j), and softmax attention adds
    (i−j)·log γ_h to the scores. The angles are 10000^(−2t/d); those of the public code end at 1/10000.
    Retention's gate and its normalization per head are not implemented. The encoding has no parameters and
    takes O(L d) time.
    """

    def log_decay(self, context: Context = START) -> Tensor | None:
        return constant(_log_decays, self.num_heads, **float64_options(context.device))


def _log_decays(num_heads, device):
    heads = torch.arange(num_heads, **float64_options(device))
    return torch.log1p(-(2.0 ** (-5 - heads)))
