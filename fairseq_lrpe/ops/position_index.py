"""Positions of queries and keys: consecutive ones, and those of a :class:`PositionIndex`.

The argument ``offset`` of functions is the first of consecutive positions, or a ``PositionIndex``, such as
that of the patches of an image or of random positions. :func:`as_positions` returns an object with the same
methods for both.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed
from fairseq_lrpe.ops.float64 import float64_options, to_float64
from fairseq_lrpe.ops.torch_internals import assert_in_kernel

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # of typing from Python 3.13 on

_MAX_DISTANCES = 2**16
_MAX_DISTANCES_PER_TOKEN = 16
"""Number of distances, and number of distances per token, up to which tables have all possible distances."""


def integer_positions(positions: Tensor, name: str = "positions") -> Tensor:
    """Returns integers of any dtype as int64, because torch does not index with all dtypes.

    torch would use indices of uint8 as masks. Values of torch.bool count as 0 and 1.

    Raises:
        TypeError: if ``positions`` are not integers.
    """
    if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.is_complex():
        found = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise TypeError(f"{name} must be a tensor of integers, not {found}")
    return positions.long()


def has_values(x: Tensor) -> bool:
    """Returns whether values can be read: not on the meta device, in a transform, or while torch traces."""
    # Fake tensors, with which torch traces, are subclasses.
    return type(x) is Tensor and not (x.is_meta or torch.compiler.is_compiling() or is_transformed())


class ConsecutivePositions(NamedTuple):
    """Consecutive positions of queries; keys start at position 0.

    Attributes:
        start: position of the first query.
    """

    start: int

    @property
    def coordinate_shape(self) -> tuple[int, ...]:
        """The shape of a position."""
        return ()

    @property
    def distances(self) -> None:
        """None, because tables have the values of all possible distances."""
        return None

    def block(self, start: int, count: int, keys: int | None = None) -> int:
        """Returns the offset of ``count`` queries from ``start`` on."""
        return self.start + start

    def first(self) -> int:
        """Returns the first position."""
        return self.start

    def end(self, length: int) -> int:
        """Returns the position after the last one of ``length`` queries."""
        return self.start + length

    def first_row(self, queries: int, keys: int) -> int:
        """Returns the index of the key at the position of the first query, for causal attention."""
        return self.start

    def values(self, length: int, device: torch.device) -> Tensor:
        """Returns the positions of ``length`` queries as int64, (length,)."""
        return torch.arange(self.start, self.start + length, device=device)

    def key_values(self, length: int, device: torch.device) -> Tensor:
        """Returns the positions of ``length`` keys as int64, (length,)."""
        return torch.arange(length, device=device)

    def distance_range(self, queries: int, keys: int, causal: bool) -> tuple[int, int]:
        """Returns the first and the last distance in the list of a score matrix; see ``ops.relative``."""
        return self.start + queries - 1, -1 if causal else self.start - keys

    def with_distances(self) -> int:
        """Returns the offset, because the distances of consecutive positions need no list."""
        return self.start


class PositionIndex(NamedTuple):
    """Non-consecutive positions of queries and keys, which replace an offset as a function's argument.

    Attributes:
        query_positions: position of each query (Lq,), from 0 to ``max_position``, or its coordinates
            (Lq, axes) for encodings that are ``multidimensional``.
        key_positions: position of each key (Lk,), or its coordinates (Lk, axes).
        max_position: largest possible position or coordinate.
        distances: the distances (W,) of which tables have values, in descending order, at least those of all
            pairs; by default max_position, .., 0, .., -max_position.
    """

    query_positions: Tensor
    key_positions: Tensor
    max_position: int
    distances: Tensor | None = None

    @property
    def coordinate_shape(self) -> tuple[int, ...]:
        """The shape of a position: () or (axes,)."""
        return tuple(self.query_positions.shape[1:])

    def block(self, start: int, count: int, keys: int | None = None) -> "PositionIndex":
        """Returns the positions of ``count`` queries from ``start`` on and ``keys`` keys (default: all)."""
        queries = self.query_positions[start : start + count]
        return self._replace(query_positions=queries, key_positions=self.key_positions[:keys])

    def first(self) -> int:
        """Returns the smallest position, or 0 if there is none."""
        return int(self.query_positions.min()) if self.query_positions.numel() else 0

    def end(self, length: int) -> int:
        """Returns the position after the largest possible one."""
        return self.max_position + 1

    def first_row(self, queries: int, keys: int) -> int:
        """Returns the index of the key at the position of the first query, for causal attention."""
        return keys - queries

    def values(self, length: int, device: torch.device) -> Tensor:
        """Returns the positions of the queries as int64."""
        return integer_positions(self.query_positions)

    def key_values(self, length: int, device: torch.device) -> Tensor:
        """Returns the positions of the keys as int64."""
        return integer_positions(self.key_positions)

    def distance_range(self, queries: int, keys: int, causal: bool) -> tuple[int, int]:
        """Returns the first and the last distance in the list of a score matrix; see ``ops.relative``."""
        return self.max_position, -self.max_position

    def distances_of_pairs(self) -> Tensor:
        """Returns the distance (Lq, Lk) of each pair, the query's position minus the key's."""
        return integer_positions(self.query_positions)[:, None] - integer_positions(self.key_positions)

    def distance_index(self) -> Tensor:
        """Returns (Lq, Lk), the index of each pair's distance in the list of distances.

        The list is ``distances``, or max_position, .., 0, .., -max_position.
        """
        if self.distances is None:
            return self.max_position - self.distances_of_pairs()
        return torch.searchsorted(-self.distances, -self.distances_of_pairs())

    def with_distances(self) -> "PositionIndex":
        """Returns these positions with the list of their distances, if all possible distances are too many.

        A table of all of them would take gigabytes if one position is far away.
        """
        if self.query_positions.dim() > 1:
            return self
        tokens = self.query_positions.numel() + self.key_positions.numel()
        is_long = 2 * self.max_position + 1 > max(_MAX_DISTANCES, _MAX_DISTANCES_PER_TOKEN * tokens)
        if not is_long or self.distances is not None or not has_values(self.query_positions):
            return self
        return self._replace(distances=self.distances_of_pairs().unique().flip(0))


def is_consecutive(offset: "int | PositionIndex") -> "TypeIs[int]":
    """Returns whether ``offset`` is the first of consecutive positions, and not a ``PositionIndex``."""
    return not isinstance(offset, PositionIndex)


def as_positions(offset: int | PositionIndex) -> ConsecutivePositions | PositionIndex:
    """Returns an object with the same methods for both kinds of offsets."""
    return ConsecutivePositions(offset) if is_consecutive(offset) else offset


def same_positions(a: int | PositionIndex, b: int | PositionIndex, a_length: int, b_length: int) -> bool:
    """Returns whether two offsets, with the numbers of their positions, certainly give the same positions."""
    if is_consecutive(a) and is_consecutive(b):
        return a == b and a_length == b_length
    return a is b


def check_token_positions(index: PositionIndex, length: int, axes: int, ascending: bool) -> PositionIndex:
    """Returns the positions of tokens, which are both queries and keys, as int64.

    On a GPU and in compiled programs, the values are checked by assertions in kernels, because reading them
    would wait for the GPU, and end the compiled graph.

    Args:
        index: the positions of the tokens.
        length: number of tokens.
        axes: number of coordinates of a position.
        ascending: whether a token must not be at a position before that of its predecessor.

    Raises:
        TypeError: if ``index`` is not a ``PositionIndex``, or its positions are not integers.
        ValueError: for another shape, a position below 0 or above ``max_position``, positions of keys that
            differ from those of queries, or positions that are not ``ascending``.
    """
    if not isinstance(index, PositionIndex):
        raise TypeError(
            "position_index must be a PositionIndex(positions, positions, largest position), not "
            f"{type(index).__name__}"
        )
    positions = integer_positions(index.query_positions, "query_positions")
    of_keys = positions
    if index.key_positions is not index.query_positions:
        of_keys = integer_positions(index.key_positions, "key_positions")
    shape = (length,) if axes == 1 else (length, axes)
    for name, x in {"query_positions": positions, "key_positions": of_keys}.items():
        if x.shape != shape:
            raise ValueError(
                f"{name} must have shape {shape} for {length} tokens and {axes} coordinates, not "
                f"{tuple(x.shape)}"
            )
    if length and (has_values(positions) or torch.compiler.is_dynamo_compiling()):
        first = positions.amin()
        last = positions.amax()
        in_range = (first >= 0) & (last <= index.max_position)
        _require(in_range, f"positions must be from 0 to max_position {index.max_position}")
        if of_keys is not positions:
            _require((positions == of_keys).all(), "query_positions and key_positions must be equal")
        if ascending and axes == 1:
            message = (
                "positions must not descend or restart in causal attention, which looks only at preceding "
                "tokens: sort the tokens, or pass document_ids instead for packed sequences"
            )
            _require((positions[1:] >= positions[:-1]).all(), message)
    return index._replace(query_positions=positions, key_positions=of_keys)


def _require(condition, message):
    """Raises a ValueError with the message if a tensor is False.

    On a GPU and in compiled programs, it asserts the condition in a kernel instead, with a RuntimeError.
    """
    if condition.is_cuda or torch.compiler.is_dynamo_compiling():
        assert_in_kernel(condition, message)
    elif not condition:
        raise ValueError(message)


def diagonal_position_index(rows: int, columns: int, device: torch.device | None = None) -> PositionIndex:
    """Returns the positions row + column of the tokens of a grid, which are in row-major order."""
    index = torch.arange(rows, device=device)[:, None] + torch.arange(columns, device=device)
    return PositionIndex(index.flatten(), index.flatten(), rows + columns - 2)


def grid_position_index(rows: int, columns: int, device: torch.device | None = None) -> PositionIndex:
    """Returns the coordinates (row, column) of the tokens of a grid, which are in row-major order."""
    row = torch.arange(rows, device=device)
    column = torch.arange(columns, device=device)
    index = torch.cartesian_prod(row, column)
    return PositionIndex(index, index, max(rows, columns) - 1)


def random_position_index(
    length: int, count: int, device: torch.device | None = None, fixed: bool = False
) -> PositionIndex:
    """Returns ``length`` random positions below ``count``, in ascending order (Ruoss et al. 2023).

    All subsets of 0 to ``count`` − 1 of this size are equally likely. The positions are drawn from torch's
    random state of the CPU. If ``fixed``, they depend only on ``length`` and ``count``.

    Raises:
        ValueError: if ``length`` exceeds ``count``.
    """
    if length > count:
        raise ValueError(
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
    if is_consecutive(offset):
        return torch.arange(offset, offset + length, **float64_options(device))[:, None]
    values = to_float64(offset.values(length, device))
    return values if values.dim() > 1 else values[:, None]
