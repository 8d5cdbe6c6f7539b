"""Non-consecutive positions of tokens, such as the patches of an image, or random ones."""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lrpe.ops.float64 import float64_options, to_float64
from fairseq_lrpe.utils.errors import UserError


class PositionIndex(NamedTuple):
    """Non-consecutive positions of queries and keys, which replace an offset as a function's argument.

    Attributes:
        query_positions: position of each query (Lq,), from 0 to ``max_position``, or its coordinates
            (Lq, axes) for encodings that are ``multidimensional``.
        key_positions: position of each key (Lk,), or its coordinates (Lk, axes).
        max_position: largest possible position or coordinate.
    """

    query_positions: Tensor
    key_positions: Tensor
    max_position: int

    def block(self, start: int, count: int, keys: int | None = None) -> "PositionIndex":
        """Returns the positions of ``count`` queries from ``start`` on and ``keys`` keys (default: all)."""
        queries = self.query_positions[start : start + count]
        return PositionIndex(queries, self.key_positions[:keys], self.max_position)

    def distance_index(self) -> Tensor:
        """Returns (Lq, Lk), the index of each pair's distance in [max_position, .., 0, .., -max_position]."""
        return self.max_position - self.query_positions[:, None] + self.key_positions


def diagonal_position_index(rows: int, columns: int, device: torch.device | None = None) -> PositionIndex:
    """Returns the positions row + column of the tokens of a grid, which are in row-major order."""
    index = torch.arange(rows, device=device)[:, None] + torch.arange(columns, device=device)
    return PositionIndex(index.flatten(), index.flatten(), rows + columns - 2)


def grid_position_index(rows: int, columns: int, device: torch.device | None = None) -> PositionIndex:
    """Returns the coordinates (row, column) of the tokens of a grid, which are in row-major order."""
    row, column = torch.arange(rows, device=device), torch.arange(columns, device=device)
    index = torch.cartesian_prod(row, column)
    return PositionIndex(index, index, max(rows, columns) - 1)


def random_position_index(
    length: int, count: int, device: torch.device | None = None, fixed: bool = False
) -> PositionIndex:
    """Returns ``length`` random positions below ``count``, in ascending order (Ruoss et al. 2023).

    All subsets of 0 to ``count`` − 1 of this size are equally likely. They are drawn from torch's random
    state of the CPU. If ``fixed``, they depend only on ``length`` and ``count``.

    Raises:
        ValueError: if ``length`` exceeds ``count``.
    """
    if length > count:
        raise UserError(
            f"{length} tokens cannot have different positions below {count}: use at least {length} positions"
        )
    generator = torch.Generator("cpu").manual_seed(0) if fixed else None
    positions = torch.randperm(count, generator=generator, device="cpu")[:length].sort().values.to(device)
    return PositionIndex(positions, positions, count - 1)


def coordinates(offset: int | PositionIndex, length: int, device: torch.device) -> Tensor:
    """Returns the coordinates of positions, (length, axes), in float64, on the CPU if necessary.

    Args:
        offset: first of ``length`` consecutive positions, or a :class:`PositionIndex` whose query positions
            are used.
        length: number of positions.
        device: device of the model; see :func:`fairseq_lrpe.ops.float64.float64_options`.
    """
    if isinstance(offset, PositionIndex):
        positions = to_float64(offset.query_positions)
        return positions if positions.dim() > 1 else positions[:, None]
    return torch.arange(offset, offset + length, **float64_options(device))[:, None]
