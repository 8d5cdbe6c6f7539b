"""Multiplicative positions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("multiplicative")
class Multiplicative(AbsolutePosition):
    """Multiplies by a learned p_k, x ⊗ p_k (Su 2021, survey of position encodings, "Multiplicative").

    The survey leaves the initialisation open; here it is 1 + N(0, 0.02²), nearly the embeddings themselves.
    Positions from ``max_positions`` on are refused. O(L E).

    ``weight`` (max_positions, E).
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        self.weight = nn.Parameter(1 + 0.02 * torch.randn(self.max_positions, self.embed_dim))

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        places, last = self.places(positions, tokens)
        if last >= self.max_positions:
            raise ValueError(
                f"a sequence of {last + 1} tokens: multiplicative positions end at {self.max_positions}"
            )
        return x * F.embedding(places, self.weight).to(x.dtype)
