"""Hierarchical decomposition of learned positions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("hierarchical")
class Hierarchical(AbsolutePosition):
    """Adds α u_i + (1−α) u_j at position i·n + j; u_i = (p_i − α p_0)/(1−α), α = 0.4, n = ``max_positions``.

    With n learned positions p, sequences can have up to n² tokens (Su 2020, "Hierarchically decomposed
    position encoding", listed under "Trainable" in Su's survey, 2021; α as in the author's code). The sum is
    computed in the equivalent form

        p_j + α/(1−α) (p_i − p_0),

    which is exactly p_j at positions below n.

    The parameter is p, ``weight`` (n, E), which is initialized from N(0, 1/E) like fairseq's learned
    positions. The time is O(L E). Loading a ``weight`` with fewer than ``max_positions`` rows sets n to its
    number of rows. A trained model can therefore be built with a larger ``max_positions`` for longer inputs.

    Raises:
        ValueError: for positions from n² on.
    """

    additive = True
    alpha = 0.4

    def __init__(self, **shared):
        super().__init__(**shared)
        self.weight = nn.Parameter(torch.randn(self.max_positions, self.embed_dim) * self.embed_dim**-0.5)

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        n = len(self.weight)
        positions = self.mask_padding(positions, tokens)
        last = self.last_position(positions, limit=n * n)
        embedding = F.embedding(positions % n, self.weight)
        if last >= n:
            blocks = F.embedding(positions // n, self.weight) - self.weight[0]
            embedding = embedding + self.alpha / (1 - self.alpha) * blocks
        return x + embedding.to(x.dtype)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        stored = state_dict.get(f"{prefix}weight")
        if stored is not None and len(stored) < len(self.weight):
            # The parameter remains the same object, because optimizers may refer to it.
            self.weight.data = self.weight.data[: len(stored)].clone()
        super()._load_from_state_dict(state_dict, prefix, *args)
