"""Concatenation of token and position embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rotation import cached_phases, complex_dtype
from fairseq_lrpe.positions.base import AbsolutePosition, register_position

_MAX_TABLE_SIZE = 4096
"""Number of positions below which sinusoids are looked up in a table from position 0 on."""


@register_position("concatenation")
class Concatenation(AbsolutePosition):
    """Projects the concatenation of the embedding x and the sinusoidal p_k of its position k.

    The output is

        [x; p_k] W,  (p_{k,2t}, p_{k,2t+1}) = (sin kθ_t, cos kθ_t),  θ_t = 10000^(-2t/E).

    Su's survey of 2021 mentions concatenation as an alternative to addition ("Multiplicative"), but specifies
    neither p nor W. It is our choice to use the sinusoidal p, which has no maximum length, and W without
    bias, initialized with two identity matrices. The initial output is then x + p_k, as with sinusoidal
    positions, from which concatenation differs only in how x and p are combined.

    The parameter is W, ``weight`` (2E, E). The time is O(L E²).

    Raises:
        ValueError: if the embedding dimension is odd.
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        if self.embed_dim % 2:
            raise ValueError(f"concatenation needs an even embedding dimension, not {self.embed_dim}")
        self.weight = nn.Parameter(torch.eye(self.embed_dim).repeat(2, 1))

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        positions = self.mask_padding(positions, tokens)
        last = self.last_position(positions)
        angle_arguments = "a", self.embed_dim // 2, self.embed_dim, self.max_positions
        index: int | PositionIndex = 0
        if last >= max(_MAX_TABLE_SIZE, positions.numel()):
            rows, positions = positions.unique(return_inverse=True)
            index = PositionIndex(rows, rows, last)
        phases = cached_phases(angle_arguments, index, last + 1, complex_dtype(x), x.device)
        table = torch.view_as_real(phases).flip(-1).flatten(-2).to(x.dtype)
        both = torch.cat([x, F.embedding(positions, table)], dim=-1)
        return (both @ self.weight.to(x.dtype)).to(x.dtype)
