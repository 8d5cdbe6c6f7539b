"""Attention with linear biases (ALiBi)."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options


@register_encoding("alibi")
class ALiBi(Encoding):
    """Adds −m_h·(i−j) to the scaled scores, m_h = 2^(−8h/H), h = 1..H (Press et al. 2022, Section 3).

    Linear attention multiplies q_i·k_j by e^(−m_h(i−j)) instead. If H is not a power of two, the paper's code
    interpolates between the slopes of powers of two; here the formula is used for every H.
    ALiBi has no parameters. The cost is O(L²) additions in softmax attention, and little in linear attention.
    """

    def log_decay(self, context: Context = START) -> Tensor | None:
        return constant(_log_decays, self.num_heads, **float64_options(context.device))


def _log_decays(num_heads, device):
    heads = torch.arange(1, num_heads + 1, **float64_options(device))
    return -(2.0 ** (-8 * heads / num_heads))
