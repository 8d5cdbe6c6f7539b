"""Position information from the zero padding of a convolution."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("convolution")
class Convolution(AbsolutePosition):
    """Adds a depthwise convolution of the embeddings, whose zero padding marks the tokens near a border.

    The term that is added to x_i is

        p_i = Σ_j w_j ⊗ x_{i−b+j},  0 ≤ j < k = 3,

    where x is 0 before the first token, after the last token and at padding, and b is (k−1)/2, or k − 1 if
    causal. Islam et al. 2020 (Su 2021, "CNN-Style") found that convolutional networks derive
    positions from this padding. A single layer distinguishes only the first b and the last k−1−b tokens from
    all others, and otherwise only represents the order of neighbors.

    It is our choice to use a single layer without bias, and weights that are initialized from U(−1/√k, 1/√k)
    as in nn.Conv1d. The argument ``positions`` is ignored.

    The parameter is ``weight`` (k, E). The time is O(L E k).
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        self.left_context, self.right_context = (2, 0) if self.causal else (1, 1)
        self.weight = nn.Parameter(torch.empty(3, self.embed_dim).uniform_(-(3**-0.5), 3**-0.5))

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        length = x.size(1)
        padded = x.masked_fill(tokens.eq(self.padding_idx).unsqueeze(-1), 0)
        padded = F.pad(padded, (0, 0, int(self.left_context), int(self.right_context)))
        # Unlike F.conv1d, this gives exactly the same result for single tokens as for whole sequences.
        for j, weight in enumerate(self.weight.to(x.dtype)):
            x = x + weight * padded[:, j : j + length]
        return x
