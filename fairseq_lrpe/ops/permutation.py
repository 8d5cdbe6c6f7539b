"""Feature permutations that depend on the position: position s applies the power π^s of a permutation π."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import apply
from fairseq_lrpe.ops.position_index import PositionIndex, integer_positions
from fairseq_lrpe.ops.precision import Float32Parameters


def odd_even_permutation(width: int, device: torch.device | str = "cpu") -> Tensor:
    """Returns the gather index of the odd-even permutation in the LRPE papers' pseudocode.

    Entry 2k of the index is k, and entry 2k+1 is ⌈width/2⌉ + k.
    """
    index = torch.arange(width, device=device)
    return torch.where(index % 2 == 0, index // 2, (index - 1) // 2 + width - width // 2)


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

    @property
    def permutation(self) -> Tensor:
        """The gather indices (.., d), int64, from the buffer of this name."""
        stored = self._buffers.get("permutation")
        if stored is None:
            raise AttributeError(f"{type(self).__name__} has no permutation")
        return stored.round().long()

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
    if isinstance(offset, PositionIndex):
        positions = integer_positions(offset.query_positions)
        if offset.max_position < positions.numel():
            return permutation_powers(permutation, 0, offset.max_position + 1)[..., positions, :]
        return _powers_at(permutation, positions, offset.max_position)
    if offset < 0:
        raise ValueError(f"positions must not be negative, but the first one is {offset}")
    power = torch.arange(permutation.size(-1), device=permutation.device).expand_as(permutation)
    square, bits = permutation, offset
    while bits:
        if bits & 1:
            power = power.gather(-1, square)
        square, bits = square.gather(-1, square), bits >> 1

    powers, step = power.unsqueeze(-2), permutation
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


def permute_features(x: Tensor, index: Tensor) -> Tensor:
    """Returns y with y[..., s, i] = x[..., s, index[..., s, i]]; rows of ``index`` permute 0..d-1."""
    identity = torch.arange(index.size(-1), device=index.device).expand_as(index)
    inverse = torch.empty_like(index).scatter_(-1, index, identity)
    return apply(_Permute, x, index, inverse)
