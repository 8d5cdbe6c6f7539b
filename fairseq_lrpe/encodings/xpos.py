"""Extrapolatable positions: RoPE whose features fade."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding(
    "xpos",
    gamma="xPos's γ: the larger, the more slowly features fade",
    scale_base="the distance over which xPos's features fade by ζ: 1 as its formula, 512 as its code",
)
class XPos(RoPE):
    """Turns q and k as RoPE does, and lets the pair t of features fade by ζ_t^(i−j).

    (Sun et al. 2022, Algorithm 1.) ζ_t = (t/(d/2) + γ)/(1 + γ), t < d/2, γ = 0.4. The paper multiplies q_i by
    ζ^i and k_j by ζ^−j, which float32 leaves after some 70 positions; here they are made for a few queries,
    or a chunk, at a time. The public code has ζ^((i−j)/512): ``scale_base`` 512.
    No parameters; O(L d) in linear attention, O(L² d) without torch's own kernel in softmax attention.
    """

    bidirectional = False

    def __init__(self, *, gamma: float = 0.4, scale_base: int = 1, **shared):
        super().__init__(**shared)
        if not gamma > 0:
            raise ValueError(f"xpos needs a gamma above 0, so that no feature vanishes at once, not {gamma}")
        if scale_base < 1:
            raise ValueError(f"xpos needs a scale base of at least 1, not {scale_base}")
        self.gamma, self.scale_base = gamma, scale_base

    @property
    def log_decay(self) -> Tensor | None:
        pair = torch.arange(self.head_dim // 2, dtype=torch.float64) / (self.head_dim // 2)
        zeta = (pair + self.gamma) / (1 + self.gamma)
        return (zeta.log() / self.scale_base).repeat_interleave(2)[None]
