"""Multiplicative position embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("multiplicative")
class Multiplicative(AbsolutePosition):
    """Multiplies the embedding x at position k by a learned p_k (Su 2021, survey, "Multiplicative").

    The survey does not specify the initialization; here it is 1 + N(0, 0.02²), so that embeddings hardly
    change.

    The parameter is p, ``weight`` (max_positions, E). The time is O(L E).

    Raises:
        ValueError: for positions from ``max_positions`` on.
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        self.weight = nn.Parameter(1 + 0.02 * torch.randn(self.max_positions, self.embed_dim))

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        positions = self.mask_padding(positions, tokens)
        self.last_position(positions, limit=self.max_positions)
        return x * F.embedding(positions, self.weight).to(x.dtype)
