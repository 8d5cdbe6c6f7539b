"""xPos: rotary embeddings with a decay for each feature."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.rope import RoPE
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options


@register_encoding(
    "xpos",
    gamma="xPos's γ; a larger γ makes the decay slower",
    scale_base="distance over which xPos's features decay by ζ: 1 in the paper's formula, 512 in its code",
)
class XPos(RoPE):
    """RoPE in which the feature pair t decays by ζ_t^(i−j) (Sun et al. 2022, Algorithm 1).

    ζ_t is (t/(d/2) + γ)/(1 + γ), t < d/2; γ, ``gamma``, is 0.4 in the paper. The paper multiplies q_i by ζ^i
    and k_j by ζ^−j, which overflows float32 after about 70 positions; here the factors are computed relative
    to the middle of a block of queries or of a chunk. The public code uses ζ^((i−j)/512), which is
    ``scale_base`` 512. The encoding has no parameters. The cost is O(L d) in linear attention, and O(L² d) in
    softmax attention, which cannot use torch's fused kernels.

    Raises:
        ValueError: if ``gamma`` is not positive, ``scale_base`` is below 1, or head_dim is odd.
    """

    def __init__(self, *, gamma: float = 0.4, scale_base: int = 1, **shared):
        super().__init__(**shared)
        if not gamma > 0:
            raise ValueError(f"xpos needs a positive gamma, not {gamma}")
        if scale_base < 1:
            raise ValueError(f"xpos needs a scale base of at least 1, not {scale_base}")
        self.gamma = gamma
        self.scale_base = scale_base

    def log_decay(self, context: Context = START) -> Tensor | None:
        options = self.head_dim // 2, self.gamma, self.scale_base
        return constant(_log_decays, *options, **float64_options(context.device))


def _log_decays(pairs, gamma, scale_base, device):
    pair = torch.arange(pairs, **float64_options(device)) / pairs
    zeta = (pair + gamma) / (1 + gamma)
    return (zeta.log() / scale_base).repeat_interleave(2)[None]
