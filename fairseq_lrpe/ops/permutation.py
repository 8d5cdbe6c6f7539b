"""Feature permutations that depend on the position: position s applies the power π^s of a permutation π."""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import apply, is_transformed
from fairseq_lrpe.ops.constants import is_tracing
from fairseq_lrpe.ops.position_index import PositionIndex, integer_positions, is_consecutive
from fairseq_lrpe.ops.precision import Float32Parameters
from fairseq_lrpe.ops.torch_internals import assert_in_kernel, outside_modes

_MIN_STORED_POSITIONS = 256
"""Minimum number of consecutive positions whose powers are stored."""

_MAX_STORED_ELEMENTS = 2**20
"""Maximum size of the powers that are stored, 8 MiB, and as much for their inverses, in each layer.

The powers and their inverses are twice as large if the positions start in the middle of a part, as in
decoding.
"""

_CHANGED = "a permutation was modified through .data: modify the buffer itself under torch.no_grad()"


def odd_even_permutation(width: int, device: torch.device | str = "cpu") -> Tensor:
    """Returns the gather index of the odd-even permutation in the LRPE papers' pseudocode.

    Entry 2k of the index is k, and entry 2k+1 is ⌈width/2⌉ + k.
    """
    index = torch.arange(width, device=device)
    return torch.where(index % 2 == 0, index // 2, (index - 1) // 2 + width - width // 2)


class PermutationTable(NamedTuple):
    """Gather indices (..., L, d) of a permutation for each position, and those of its inverse."""

    index: Tensor  # type: ignore[assignment]  # a field may be named as a method of tuples
    inverse: Tensor


def permutation_table(permutation: Tensor, offset: int | PositionIndex, length: int) -> PermutationTable:
    """Returns the :func:`permutation_powers` at positions, and their inverses."""
    powers = permutation_powers(permutation, offset, length)
    return PermutationTable(powers, inverse_permutation(powers))


class _StoredTable:
    """Store of the powers of a permutation at consecutive positions.

    The powers are valid for the tensor from which they were computed. A tensor can be modified without a
    trace in Python: assignments to ``.data`` and functions of torch.distributed do not change its version. On
    a CPU, the values of the tensor are therefore compared in each call. On a GPU, where a comparison would
    have to be waited for, a kernel raises an error if the values differ. A copy of this object is empty.
    """

    def __init__(self):
        self.part = None

    def __reduce__(self):
        return _StoredTable, ()

    def __call__(self, stored: Tensor, offset: int, length: int) -> PermutationTable:
        part = self.part  # which another thread can replace
        if part is None or not part.contains(stored, offset, length):
            part = self.part = _compute_part(stored, offset, length)
        start = offset - part.first
        return PermutationTable(*(x[..., start : start + length, :] for x in part.table))


class _Part(NamedTuple):
    """Powers, from position ``first`` on, of the tensor ``stored``, whose values then were ``values``."""

    stored: Tensor
    version: int
    address: int
    values: Tensor
    first: int
    table: PermutationTable

    def contains(self, stored, offset, length):
        if stored is not self.stored or (stored._version, stored.data_ptr()) != (self.version, self.address):
            return False
        if offset < self.first or offset + length > self.first + self.table.index.size(-2):
            return False
        if _is_read(stored):
            return self.values.equal(stored)
        assert_in_kernel((self.values == stored).all(), _CHANGED)
        return True


def _is_read(x):
    """Returns whether values of x can be read without waiting for a device."""
    return x.device.type == "cpu"


def _compute_part(stored, offset, length):
    size = _stored_positions(length)
    first = offset - offset % size
    with outside_modes():
        values = stored.detach().clone()
        rows = size if offset + length <= first + size else 2 * size
        table = permutation_table(values.round().long(), first, rows)
    return _Part(stored, stored._version, stored.data_ptr(), values, first, table)


def _stored_positions(length):
    """Returns the number of positions in a part of the sequence whose powers are stored together."""
    return max(_MIN_STORED_POSITIONS, 1 << (length - 1).bit_length())


class PermutationBuffer(Float32Parameters):
    """Base class of modules with a fixed random permutation of features, the buffer ``permutation`` (.., d).

    The buffer contains the gather indices as floating point numbers, which are rounded when they are used:
    moving averages of a model's tensors, such as those of timm and torch, truncate integers, and 0.9999 · 7 +
    0.0001 · 7 can be 6. Checkpoints with integers are loaded, too.

    Raises:
        ValueError: if a loaded tensor does not contain permutations, as an average of different models.
    """

    def store_permutation(self, index: Tensor) -> None:
        """Registers the buffer for the gather indices (.., d)."""
        self.register_buffer("permutation", index.float())
        self._stored_table = _StoredTable()

    @property
    def permutation(self) -> Tensor:
        """The gather indices (.., d), int64, from the buffer of this name."""
        stored = self._buffers.get("permutation")
        if stored is None:
            raise AttributeError(f"{type(self).__name__} has no permutation")
        return stored.round().long()

    def permutation_table(self, offset: int | PositionIndex, length: int) -> PermutationTable:
        """Returns the powers of the permutation at positions, and their inverses.

        The arguments are those of :func:`permutation_powers`. The table is stored, except for long sequences,
        few far positions, and while torch traces or transforms functions.
        """
        if not self._stores_table(offset, length):
            return permutation_table(self.permutation, offset, length)
        stored = self._buffers["permutation"]
        assert stored is not None  # _stores_table
        if is_consecutive(offset):
            return self._stored_table(stored, offset, length)
        table = self._stored_table(stored, 0, offset.max_position + 1)
        positions = integer_positions(offset.query_positions)
        return PermutationTable(*(x[..., positions, :] for x in table))

    def _stores_table(self, offset, length):
        stored = self._buffers.get("permutation")
        if is_tracing() or is_transformed() or stored is None or stored.is_inference():
            return False
        if stored.device.type == "mps":  # which has no assertions
            return False
        if not is_consecutive(offset):
            if offset.max_position >= max(_MIN_STORED_POSITIONS, offset.query_positions.numel()):
                return False
            offset, length = 0, offset.max_position + 1
        return offset >= 0 and _stored_positions(length) * stored.numel() <= _MAX_STORED_ELEMENTS

    def _keeps_float32(self, name):
        return name == "permutation" or super()._keeps_float32(name)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        loaded = state_dict.get(f"{prefix}permutation")
        if loaded is not None and not (loaded.is_meta or loaded.numel() == 0):
            expected = torch.arange(loaded.size(-1), device=loaded.device).expand_as(loaded)
            if not loaded.double().round().long().sort(-1).values.equal(expected):
                raise ValueError(
                    f"{prefix}permutation contains no permutation, perhaps because integers were averaged: "
                    "copy it from the model of which this is an average"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)


def permutation_powers(permutation: Tensor, offset: int | PositionIndex, length: int) -> Tensor:
    """Returns the gather indices (..., length, d) of π^s for each position s.

    π^offset is computed by repeated squaring, so that large offsets are cheap.

    Args:
        permutation: the gather indices (..., d) of π.
        offset: first of ``length`` consecutive positions, or a :class:`PositionIndex` whose query positions
            are used.
        length: number of positions.

    Raises:
        ValueError: for a negative offset.
    """
    if not is_consecutive(offset):
        positions = integer_positions(offset.query_positions)
        if offset.max_position < positions.numel():
            return permutation_powers(permutation, 0, offset.max_position + 1)[..., positions, :]
        return _powers_at(permutation, positions, offset.max_position)
    if offset < 0:
        raise ValueError(f"positions must not be negative, but the first one is {offset}")
    power = torch.arange(permutation.size(-1), device=permutation.device).expand_as(permutation)
    square = permutation
    bits = offset
    while bits:
        if bits & 1:
            power = power.gather(-1, square)
        square = square.gather(-1, square)
        bits = bits >> 1

    powers = power.unsqueeze(-2)
    step = permutation
    while powers.size(-2) < length:  # n powers and π^n give the next n powers
        powers = torch.cat([powers, powers.gather(-1, step.unsqueeze(-2).expand_as(powers))], dim=-2)
        step = step.gather(-1, step)
    return powers[..., :length, :]


def _powers_at(permutation, positions, max_position):
    """Returns :func:`permutation_powers` at positions (L,) by repeated squaring."""
    shape = *permutation.shape[:-1], len(positions), permutation.size(-1)
    power = torch.arange(shape[-1], device=permutation.device).expand(shape)
    square = permutation.unsqueeze(-2)
    for bit in range(max_position.bit_length()):
        odd = (positions >> bit).remainder(2).bool()[:, None]
        power = torch.where(odd, power.gather(-1, square.expand(shape)), power)
        square = square.gather(-1, square)
    return power


class _Permute(torch.autograd.Function):
    # torch's backward pass of gather is a scatter_add; for a permutation, a gather by its inverse is enough.
    @staticmethod
    def plain(x, index, inverse):
        return x.gather(-1, index.expand_as(x))

    @staticmethod
    def forward(ctx, x, index, inverse):
        ctx.save_for_backward(index, inverse)
        return _Permute.plain(x, index, inverse)

    @staticmethod
    def backward(ctx, grad):
        index, inverse = ctx.saved_tensors
        return apply(_Permute, grad, inverse, index), None, None


def inverse_permutation(index: Tensor) -> Tensor:
    """Returns the inverses of permutations (..., d)."""
    identity = torch.arange(index.size(-1), device=index.device).expand_as(index)
    return torch.empty_like(index).scatter_(-1, index, identity)


def permute_features(x: Tensor, index: Tensor, inverse: Tensor | None = None) -> Tensor:
    """Returns y with y[..., s, i] = x[..., s, index[..., s, i]]; rows of ``index`` permute 0..d-1.

    ``inverse`` is ``inverse_permutation(index)`` if it is known.
    """
    return apply(_Permute, x, index, inverse_permutation(index) if inverse is None else inverse)
