"""Positions of tokens that are not consecutive, such as the patches of an image."""

from typing import NamedTuple

import torch
from torch import Tensor


class PositionIndex(NamedTuple):
    """Positions of queries and keys; passed in place of an offset, which stands for consecutive positions.

    Attributes:
        query_positions: position of each query (Lq,), from 0 to ``max_position``.
        key_positions: position of each key (Lk,); all keys, even if there are only some of the queries.
        max_position: largest possible position.
    """

    query_positions: Tensor
    key_positions: Tensor
    max_position: int

    def slice_queries(self, start: int, count: int) -> "PositionIndex":
        """Returns the index of ``count`` queries from ``start`` on, with all keys."""
        return self._replace(query_positions=self.query_positions[start : start + count])

    def distance_index(self) -> Tensor:
        """Returns (Lq, Lk), the index of each pair's distance in max_position, .., 0, .., -max_position."""
        return self.max_position - self.query_positions[:, None] + self.key_positions


def diagonal_position_index(rows: int, columns: int, device: torch.device | None = None) -> PositionIndex:
    """Returns the positions r + c of a grid in row-major order."""
    index = torch.arange(rows, device=device)[:, None] + torch.arange(columns, device=device)
    return PositionIndex(index.flatten(), index.flatten(), rows + columns - 2)
