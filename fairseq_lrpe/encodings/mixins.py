"""What few encodings need, besides the interface of :class:`Encoding`: traits, and a mixin for each purpose.

A class that overrides a method of a mixin without inheriting from it raises a TypeError.
"""

from typing import Any

from torch import Tensor

from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.decay_scores import decay_scores, prepare_decay


class Traits:
    """Properties of an encoding that other modules query; each applies to few encodings."""

    uses_absolute_positions = False
    """Whether scores or outputs depend on absolute positions, which excludes a memory of earlier segments."""

    accumulates = False
    """Whether values that depend on the input are accumulated over consecutive tokens."""

    rotated_features = ""
    """Which features ``forward`` rotates together, if q and k keep their norms: "pairs" (2t, 2t+1), "halves"
    (t, t + d), which are real and imaginary parts, or "all"; empty if norms can change."""

    multidimensional = False
    """Whether positions can have several coordinates, those of a ``PositionIndex``."""

    draws_noise = False
    """Whether each call in training mode draws new noise, so that no state can be passed between calls."""

    shared_across_layers = False
    """Whether all attention layers of an encoder or decoder share one module."""

    uses_distance_table = False
    """Whether the encoding has a table of values by distance, so that ``clamp_length`` can be set."""

    clamp_length = 0
    """Maximum distance, which replaces larger distances in such a table; 0 means no maximum."""


class ScoresMixin:
    """Mixin for encodings that compute the scores of softmax attention, or data that all blocks share.

    Softmax attention computes scores for one block of queries at a time. First, :meth:`prepare` is called
    once, and then :meth:`scores` for each block. If ``scores`` returns None, the scores are scale·q·kᵀ +
    bias.
    """

    scale: float  # of Encoding

    log_weights = False
    """Whether :meth:`scores` returns the logarithms of the weights, which then need not sum to 1."""

    query_bias: Tensor | None = None
    """u (H, d) if :meth:`Encoding.forward` only adds u to the queries, otherwise None."""

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        """Computes data for ``bias`` and :meth:`scores`, which they get as ``context.prepared``.

        Args:
            q: queries as returned by ``forward``.
            k: keys as returned by ``forward``, preceded by those of earlier calls, as returned by
                :meth:`cached_keys`.
            context: the context of the call without ``prepared``, which :func:`prepare_scores` adds.
        """
        return prepare_decay(q, k, context)

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
        """Returns the scaled scores (B, H, Lq, Lk) of a block if they are not scale·q·kᵀ + bias, else None.

        The arguments are those of ``bias``. Entries of keys after their query or at padding are arbitrary.
        """
        return decay_scores(self.scale, q, k, context)

    def cached_keys(self, k: Tensor, context: Context) -> Tensor:
        """Returns the keys (B, H, Lk, d) to store for the next call, by default k.

        Args:
            k: all keys (B, H, Lk, d): stored ones as this method returned them, then those of this call as
                ``forward`` returned them.
            context: the context of the call, with ``prepared``.
        """
        return k


class ValuesMixin:
    """Mixin for encodings that transform values before attention, or outputs after it."""

    name: str  # of Encoding

    needs_weights = False
    """Whether softmax attention passes its weights to :meth:`decode_output`."""

    def encode_values(self, v: Tensor, context: Context = START) -> Tensor:
        """Returns the encoded values, where row j is at position ``context.k_offset + j``."""
        return v

    def decode_output(self, o: Tensor, context: Context = START, weights: Tensor | None = None) -> Tensor:
        """Returns the transformed output of attention.

        Args:
            o: output (B, H, Lq, d), where row i is at position ``context.q_offset + i``.
            context: the context, in softmax attention that of a block of queries.
            weights: the attention weights (B, H, Lq, Lk) if ``needs_weights``.
        """
        return o

    def shift_values(self, v: Tensor, shift: int) -> Tensor:
        """Returns the encoding of the same values at positions smaller by ``shift``.

        Args:
            v: encoded values (B, H, n, dv), or sums of them, because the operation is linear.
            shift: number of positions, at least 0.

        Raises:
            ValueError: if encoded values cannot be shifted, which is the default.
        """
        raise ValueError(f"{self.name} cannot shift the positions of encoded values")


class InputsMixin:
    """Mixin for encodings that depend on the inputs of the attention layer."""

    name: str  # of Encoding

    left_context = 0
    """Number of preceding inputs that :meth:`input_features` needs."""

    accumulates = True

    def input_features(self, x: Tensor) -> Tensor:
        """Returns features of the attention layer's inputs, which are ``context.features`` in other methods.

        Args:
            x: inputs (B, left_context + n, E), 0 at padding and before the start of a sequence.

        Returns:
            The features (B, H, n, F). The caller sets features at padding to 0.
        """
        raise NotImplementedError


class ShiftMixin:
    """Mixin for encodings of keys that can be moved after encoding, as a memory of running sums requires."""

    name: str  # of Encoding

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        """Returns the encoding of the same keys at positions smaller by ``shift``.

        Args:
            k: encoded keys (B, H, n, d'), or sums of them, because the operation is linear.
            shift: number of positions, at least 0.

        Raises:
            ValueError: if the encoding cannot be shifted, which is the default.
        """
        raise ValueError(f"{self.name} cannot shift the positions of encoded keys")


MIXINS = (ScoresMixin, ValuesMixin, InputsMixin, ShiftMixin)


def check_mixins(cls: type) -> None:
    """Raises a TypeError if a class overrides a member of a mixin from which it does not inherit."""
    for mixin in MIXINS:
        if issubclass(cls, mixin):
            continue
        for name in vars(mixin).keys() & vars(cls).keys():
            if not name.startswith("_") and name not in vars(Traits):
                raise TypeError(
                    f"{cls.__name__}.{name} would never be used, because {name} belongs to "
                    f"{mixin.__name__}: declare class {cls.__name__}({mixin.__name__}, ...)"
                )
