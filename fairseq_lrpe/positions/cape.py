"""CAPE: sinusoidal positions that are shifted and scaled at random in training."""

import math
from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.rotation import rotary_angles
from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("cape")
class CAPE(AbsolutePosition):
    """Adds sinusoids at continuous positions, which are augmented in training (Likhomanenko et al. 2021).

    The term that is added has the features sin(τ_k θ_t) and cos(τ_k θ_t) at 2t and 2t + 1, where

        τ_k = λ (k + Δ + ε_k) in training,  τ_k = k in evaluation,  θ_t = 10000^(-2t/E).

    Each sequence draws a global shift Δ ~ U(−5, 5) and log λ ~ U(−log 1.03, log 1.03), and each of its tokens
    a local shift ε_k ~ U(−1/2, 1/2), which preserves their order. The formula is that of the paper (arXiv
    2106.03143); the ranges are those for text in gcambara/cape (README.md, cape/cape.py), where positions are
    not centered either.

    In the paper's translation models, the positions of a source and its target are coupled; here, encoder and
    decoder draw them independently. Angles are computed in float64, because positions can be large.

    There are no parameters. The time is O(L E).

    Raises:
        ValueError: if the embedding dimension is odd.
    """

    additive = True
    draws_noise = True
    max_global_shift = 5.0
    max_local_shift = 0.5
    max_scale = 1.03

    def __init__(self, **shared):
        super().__init__(**shared)
        if self.embed_dim % 2:
            raise ValueError(f"cape needs an even embedding dimension, not {self.embed_dim}")

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        positions = self.mask_padding(positions, tokens)
        positions = to_float64(positions)
        if self.training:
            positions = self._augment(positions)
        width = self.embed_dim
        options: Any = {"device": positions.device, "dtype": positions.dtype}
        theta = constant(rotary_angles, "a", width // 2, width, self.max_positions, **options)
        angles = positions.unsqueeze(-1) * theta
        return x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(x)

    def _augment(self, positions):
        """Returns λ (k + Δ + ε_k) for the positions k (B, L)."""

        def uniform(maximum, *shape):
            return positions.new_empty(shape).uniform_(-maximum, maximum)

        rows = len(positions)
        shift = uniform(self.max_global_shift, rows, 1) + uniform(self.max_local_shift, *positions.shape)
        return (positions + shift) * uniform(math.log(self.max_scale), rows, 1).exp()
