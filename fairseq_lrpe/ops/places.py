"""Positions of tokens that do not stand one after the other, such as the patches of a picture."""

from typing import NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """Where tokens stand; it goes where an offset would, which says that they follow one another.

    ``index`` (L,) has the position of each, from 0 to ``last``, and ``keys`` those of all keys, which some
    queries alone meet as well.
    """

    index: Tensor
    keys: Tensor
    last: int

    def rows(self, start: int, count: int) -> "Places":
        """Returns the places of ``count`` of the queries."""
        return self._replace(index=self.index[start : start + count])

    def columns(self) -> Tensor:
        """Returns (Lq, Lk), where the distance of each pair stands among last, last - 1, .., -last."""
        return self.last - self.index[:, None] + self.keys


def diagonal_places(rows: int, columns: int, device: torch.device | None = None) -> Places:
    """Returns the places r + c of a grid, row by row."""
    index = torch.arange(rows, device=device)[:, None] + torch.arange(columns, device=device)
    return Places(index.flatten(), index.flatten(), rows + columns - 2)
