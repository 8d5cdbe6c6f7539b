"""Non-consecutive positions of tokens, such as the patches of an image."""

from typing import NamedTuple

import torch
from torch import Tensor


class PositionIndex(NamedTuple):
    """Non-consecutive positions of queries and keys, which replace an offset as a function's argument.

    Attributes:
        query_positions: position of each query (Lq,), from 0 to ``max_position``.
        key_positions: position of each key (Lk,).
        max_position: largest possible position.
    """

    query_positions: Tensor
    key_positions: Tensor
    max_position: int

    def slice_queries(self, start: int, count: int) -> "PositionIndex":
        """Returns a copy with the queries ``start`` to ``start + count - 1`` and all keys."""
        return self._replace(query_positions=self.query_positions[start : start + count])

    def distance_index(self) -> Tensor:
        """Returns (Lq, Lk), the index of each pair's distance in [max_position, .., 0, .., -max_position]."""
        return self.max_position - self.query_positions[:, None] + self.key_positions


def diagonal_position_index(rows: int, columns: int, device: torch.device | None = None) -> PositionIndex:
    """Returns the positions row + column of the tokens of a grid, which are in row-major order."""
    index = torch.arange(rows, device=device)[:, None] + torch.arange(columns, device=device)
    return PositionIndex(index.flatten(), index.flatten(), rows + columns - 2)
