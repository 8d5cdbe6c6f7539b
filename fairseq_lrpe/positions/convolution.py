"""The position that zero padding gives to a convolution."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("convolution")
class Convolution(AbsolutePosition):
    """Adds a depthwise convolution of the embeddings, whose zero padding tells the tokens at a border.

        p_i = Σ_j w_j ⊗ x_{i−b+j},  0 ≤ j < k = 3,

    with x = 0 before the first token, after the last one and at padding; b = (k−1)/2, and k − 1 in a causal
    model, which sees no token after i. Islam et al. (ICLR 2020; survey of 2021, "CNN-Style") found that
    convolutional networks know positions by this padding. A single layer of it tells the first b tokens and
    the last k−1−b from all others, and of those between the order of neighbours alone.

    Choices: one layer, without a bias, in the place of a table, so that ``positions`` are not looked at;
    weights start U(−1/√k, 1/√k) as in nn.Conv1d. O(L E k).

    ``weight`` (k, E).
    """

    size = 3

    def __init__(self, **shared):
        super().__init__(**shared)
        self.before = self.size - 1 if self.causal else (self.size - 1) // 2
        self.after = self.size - 1 - self.before
        bound = self.size**-0.5
        self.weight = nn.Parameter(torch.empty(self.size, self.embed_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        length = x.size(1)
        seen = x.masked_fill(tokens.eq(self.padding_idx).unsqueeze(-1), 0)
        seen = F.pad(seen, (0, 0, self.before, self.after))
        for j, weight in enumerate(self.weight.to(x.dtype)):  # no slower than F.conv1d, and exact in steps
            x = x + weight * seen[:, j : j + length]
        return x
