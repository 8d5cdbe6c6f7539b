"""Base class of encodings that rotate features, and the scaling of their angles."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import ENCODINGS, Encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.table import TableEncoding
from fairseq_lrpe.ops.position_index import PositionIndex, as_positions
from fairseq_lrpe.ops.rope_scaling import RopeScaling
from fairseq_lrpe.ops.rotation import rotate_pairs


class RotaryEncoding(TableEncoding):
    """Base class of encodings that rotate features by angles proportional to the position.

    The table has the phases e^{isθ} of each position s, (..., L, n); by default, they rotate the pairs
    (x_2t, x_2t+1). Subclasses must apply the scaling that :meth:`scaling_at` returns to their angles, or set
    ``scalable`` to False, and call :meth:`check_shift` if they override ``shift_keys``. Only the angles are
    scaled: parameters, and other functions of the distance such as decays, remain unchanged.
    """

    rope_scaling: RopeScaling | None = None
    """The scaling of the angles, or None for no scaling; set by :func:`scale_rotations`."""

    @property
    def scalable(self) -> bool:
        """Whether the angles can be scaled; those of the two coordinates of an image cannot."""
        return self.axes == 1

    def scaling_at(self, offset: int | PositionIndex, length: int) -> RopeScaling | None:
        """Returns the scaling in a sequence that ends with the ``length`` positions from ``offset`` on.

        With a ``PositionIndex``, the sequence ends with its ``max_position``. Only dynamic scaling depends on
        the end. None means that angles are not scaled.
        """
        return self.rope_scaling and self.rope_scaling.at_length(as_positions(offset).end(length))

    def encode(self, x: Tensor, table: Tensor) -> Tensor:
        return rotate_pairs(x, table)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        self.check_keys(q, k, context)
        return self.with_attention_factor(*super().forward(q, k, context))

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        self.check_shift()
        return self.encode(k, self.position_table(k[:, :, :1], shift).conj())

    def check_keys(self, q: Tensor, k: Tensor, context: Context) -> None:
        """Raises a ValueError if dynamic scaling changes the angles and the call does not encode all keys.

        Cached keys have been encoded with the angles of a shorter sequence.
        """
        if self.rope_scaling is None or self.rope_scaling.type != "dynamic":
            return
        trained_length = self.rope_scaling.original_length
        assert trained_length is not None  # dynamic scaling requires it
        keys = as_positions(context.k_offset)
        end = keys.end(k.size(-2))
        q_end = as_positions(context.q_offset).end(q.size(-2))
        if max(end, q_end) > trained_length and (q_end != end or keys.first()):
            raise ValueError(
                "dynamic scaling encodes all keys with the angles of the current length, which cached keys "
                f"do not have after {trained_length} positions: use ntk, such as ntk:4"
            )

    def check_shift(self) -> None:
        """Raises a ValueError for dynamic scaling, whose encoded keys have unknown angles."""
        if self.rope_scaling is not None and self.rope_scaling.type == "dynamic":
            raise ValueError("dynamic scaling cannot shift encoded keys: use ntk, such as ntk:4")

    def with_attention_factor(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Returns q and k multiplied by the ``attention_factor`` of the scaling."""
        factor = 1.0 if self.rope_scaling is None else self.rope_scaling.attention_factor
        return (q, k) if factor == 1.0 else (factor * q, factor * k)


def scalable_encodings() -> list[str]:
    """Returns the sorted names of the registered encodings whose angles can be scaled."""
    rotary = [(name, cls) for name, cls in ENCODINGS.items() if issubclass(cls, RotaryEncoding)]
    # A class that has the property ``scalable`` decides by its options.
    return sorted(name for name, cls in rotary if cls.scalable is not False)


_WITHOUT_DISTANCE = ("none", "log_scale")
"""Encodings without angles or distances, which layers between those with rotations may have."""


def scale_rotations(module: nn.Module, scaling: RopeScaling | None) -> None:
    """Scales the angles of all rotations in a module, such as a model or an encoding.

    Args:
        module: the module, which is changed.
        scaling: the scaling, or None to restore the angles of the training.

    Raises:
        ValueError: if the module has no encoding, or one without angles that can be scaled.
    """
    encodings = [x for x in module.modules() if isinstance(x, Encoding) and x.name not in _WITHOUT_DISTANCE]
    other = [x for x in encodings if not (isinstance(x, RotaryEncoding) and x.scalable)]
    if other or not encodings:
        problem = "the model has no encoding"
        if other:
            problem = f"{other[0].name} has no rotation angles that can be scaled"
        raise ValueError(
            f"{problem}: for rope scaling, use one of {', '.join(scalable_encodings())} in sequences, except "
            "lrpe's permutation core"
        )
    for encoding in encodings:
        assert isinstance(encoding, RotaryEncoding)
        encoding.rope_scaling = scaling
        if scaling is not None and scaling.divisors:
            encoding.position_table(torch.zeros(1, encoding.num_heads, 1, encoding.head_dim), 0)  # raises
