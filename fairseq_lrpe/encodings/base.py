"""Interface and registry of positional encodings."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lrpe.ops.decay import (
    decay_of_keys,
    decayed_products,
    finite_log_decay,
    gate_bias,
    gated_products,
)
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.precision import Float32Parameters
from fairseq_lrpe.ops.relative import distance_table, expand_distances
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import choices as choices_for

ENCODINGS = {}


class Context(NamedTuple):
    """Contains what an encoding may depend on in a call of attention, besides queries, keys and values.

    Attributes:
        q_offset: position of the first query, or a :class:`fairseq_lrpe.ops.position_index.PositionIndex` if
            positions are not consecutive.
        k_offset: position of the first key, or a ``PositionIndex`` whose ``query_positions`` are the
            positions of the keys.
        key_padding_mask: (B, Lk), True at padding, or None.
        features: the :meth:`Encoding.input_features` of the new keys, which are the last ones, or None.
        feature_sum: the sum of the features of all earlier keys, (B, H, 1, F) in float64, or None for 0.
        log_decay: in softmax attention, the result of :meth:`Encoding.log_decay`. A decay that depends on the
            input is that of all keys, also of cached ones.
        prepared: the result of :meth:`Encoding.prepare`.
        device: device of the queries, on which constants of the encoding are cached.
    """

    q_offset: int | PositionIndex = 0
    k_offset: int | PositionIndex = 0
    key_padding_mask: Tensor | None = None
    features: Tensor | None = None
    feature_sum: Tensor | None = None
    log_decay: Tensor | None = None
    prepared: Any = None
    device: torch.device | str = "cpu"

    def block(self, start: int, count: int, keys: int | None = None) -> "Context":
        """Returns the context of ``count`` queries from ``start`` on and ``keys`` keys (default: all)."""
        if isinstance(self.q_offset, PositionIndex):
            return self._replace(q_offset=self.q_offset.block(start, count, keys))
        return self._replace(q_offset=self.q_offset + start)

    def input_features(self) -> Tensor:
        """Returns the features; raises a ValueError if there are none."""
        if self.features is None:
            raise ValueError(
                "the encoding depends on the layer's inputs: use LinearAttention or SoftmaxAttention, or "
                "pass Context(features=encoding.input_features(x))"
            )
        return self.features

    def first_row(self, q: Tensor, k: Tensor) -> int:
        """Returns the index of the key at the position of the first query, for causal attention."""
        return k.size(-2) - q.size(-2) if isinstance(self.q_offset, PositionIndex) else self.q_offset


START = Context()
"""Context of a sequence that starts at position 0."""


class Encoding(Float32Parameters):
    """Base class of positional encodings in self-attention, which by default do not change attention.

    q, k and v are (B, H, L, d). Query i is at position ``context.q_offset + i`` and key j at
    ``context.k_offset + j``. Encoding positions one at a time must give exactly the same result as encoding
    the whole sequence. The functions in ``ops.rotation``, ``ops.permutation`` and ``ops.relative`` accept
    both kinds of offsets. ``bash scripts/test.sh --encoding NAME`` tests an encoding against this interface.

    Subclasses declare their options as keyword arguments with defaults, and pass the arguments below to this
    class as ``**shared``.

    Args:
        num_heads: number of attention heads H.
        head_dim: head dimension d.
        causal: whether attention is causal.
        layer: index of the attention layer, starting at 1.
        layers: total number of attention layers, by default ``layer``.
        max_positions: length of the longest training sequence, for formulas that depend on it. CosFormer and
            TUPE have no weights beyond it, and raise a ValueError.
        axes: number of coordinates of a position, 1 for sequences and 2 for a grid. With more than 1,
            positions must be given as a ``PositionIndex``.
    """

    name = "encoding"
    """Name of the encoding in messages; :func:`register_encoding` sets it."""

    decomposable = True
    """Whether q and k are encoded independently of each other, which linear attention requires."""

    bidirectional = True
    """Whether the encoding also works if not causal; by default False if ``log_decay`` is overridden."""

    uses_absolute_positions = False
    """Whether scores or outputs depend on absolute positions, which excludes a memory of earlier segments."""

    multidimensional = False
    """Whether positions can have several coordinates, those of a ``PositionIndex``."""

    draws_noise = False
    """Whether each call in training mode draws other noise, which excludes a state."""

    shared_across_layers = False
    """Whether all attention layers of an encoder or decoder share one module."""

    uses_distance_table = False
    """Whether the encoding has a table of values by distance, so that ``clamp_length`` can be set."""

    clamp_length = 0
    """Maximum distance of the flag --clamp-length, which replaces larger distances; 0 means no maximum."""

    query_bias: Tensor | None = None
    """u (H, d) if :meth:`forward` only adds u to the queries, otherwise None."""

    left_context: int | None = None
    """Number of preceding inputs that :meth:`input_features` needs, or None if it is not implemented."""

    log_weights = False
    """Whether :meth:`scores` returns the logarithms of the weights, which then need not sum to 1."""

    needs_weights = False
    """Whether softmax attention passes its weights to :meth:`decode_output`."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "log_decay" in vars(cls) and "bidirectional" not in vars(cls):
            cls.bidirectional = False

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        causal: bool,
        layer: int = 1,
        layers: int | None = None,
        max_positions: int = 512,
        axes: int = 1,
    ):
        super().__init__()
        if layer < 1:
            raise ValueError(f"layer must be at least 1, not {layer}")
        layers = layer if layers is None else layers
        if layers < layer:
            raise ValueError(f"layers must be at least layer {layer}, not {layers}")
        if axes < 1 or max_positions < 1:
            raise ValueError(f"axes and max_positions must be at least 1, not {axes} and {max_positions}")
        if axes > 1 and not self.multidimensional:
            known = " or ".join(name for name, cls in ENCODINGS.items() if cls.multidimensional)
            raise ValueError(
                f"{self.name} does not support positions with {axes} coordinates: use {known}, or "
                "positions with one coordinate (--image-positions sum or flat)"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        self.layer, self.layers = layer, layers
        self.max_positions = max_positions
        self.axes = axes
        self.scale = head_dim**-0.5
        """Factor of q·k in softmax attention; a bias is not multiplied by it."""

    def __call__(
        self, q: Tensor, k: Tensor, context: Context | int = START, k_offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Calls :meth:`forward`; the offsets of q and k may be given instead of a context."""
        if not isinstance(context, Context):
            context = Context(context, k_offset)
        if self.axes > 1:
            self._check_coordinates(context)
        return super().__call__(q, k, context)

    def _check_coordinates(self, context):
        """Raises a ValueError if positions do not have ``axes`` coordinates."""
        for offset in (context.q_offset, context.k_offset):
            given = offset.query_positions.shape[1:] if isinstance(offset, PositionIndex) else ()
            if given != (self.axes,):
                raise ValueError(
                    f"{self.name} encodes positions with {self.axes} coordinates: pass position_index, such "
                    "as grid_position_index(rows, columns), to attention, or positions to apply_encoding"
                )

    def log_decay(self, context: Context = START) -> Tensor | None:
        """Returns the logarithm of the decay, at most 0, or None for no decay; -inf is the decay 0.

        Only causal attention decays. With shape (H,), linear attention multiplies q_i·k_j by the decay
        exp(log_decay·(i−j)), and softmax attention adds log_decay·(i−j) to the scores, as ALiBi does (Press
        et al. 2022). With shape (H, d), or (1, d) for all heads, each feature t has its own decay: q_i·k_j
        becomes Σ_t exp(log_decay_t·(i−j)) q_it k_jt in both. With shape (H, 1), all
        features of a head have the same decay.

        A decay that depends on the layer's input has shape (B, H, n) or (B, H, n, d) for the n keys of
        ``context.features``, and is 0 at padding. Σ_{l=j+1..i} log_decay_l then replaces log_decay·(i−j).
        """
        return None

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        """Returns the encoded (q, k); their last dimension may be larger than d."""
        return q, k

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        """Computes data for :meth:`bias` and :meth:`scores`, which they get as ``context.prepared``.

        Softmax attention computes scores for one block of queries at a time, but calls this method once, for
        all queries and keys.

        Args:
            q: queries as returned by :meth:`forward`.
            k: keys as returned by :meth:`forward`, preceded by those of earlier calls, as returned by
                :meth:`cached_keys`.
            context: the context of the call without ``prepared``, which :func:`prepare_scores` adds.
        """
        decay, index = context.log_decay, context.q_offset
        if decay is None or decay.dim() == 1:
            return None
        if decay.dim() == 3:
            return to_float64(finite_log_decay(decay)).cumsum(-1)
        if decay.dim() == 2 and not isinstance(index, PositionIndex):
            return decayed_products(decay, q, k)
        if decay.dim() == 2:
            decay = decay_of_keys(decay, index.key_positions, context.key_padding_mask)
        return gated_products(decay)

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
        """Returns the term that softmax attention adds to the scaled scores, or None for no term.

        The default is the term of ``log_decay``. A subclass with a decay and its own bias must add it.

        Args:
            q: a block of queries as returned by :meth:`forward`.
            k: keys as returned by :meth:`forward`, at positions 0..Lk-1, if causal only up to the last query.
            context: the context of the block.

        Returns:
            A tensor broadcastable to (B, H, Lq, Lk). If causal, entries of keys after their query are
            arbitrary, but finite.
        """
        decay, q_offset, queries, keys = context.log_decay, context.q_offset, q.size(-2), k.size(-2)
        if decay is not None and decay.dim() == 3:
            return gate_bias(context.prepared, queries, keys, context.first_row(q, k), q.dtype)
        if decay is None or decay.dim() > 1:
            return None
        if isinstance(q_offset, PositionIndex):
            distance = distance_table(_preceding, (), queries, keys, q_offset, True, decay.device)
        else:
            distance = torch.arange(q_offset + queries - 1, -1, -1, device=decay.device)
        bias = (finite_log_decay(decay)[:, None] * distance).to(q.device, q.dtype)
        return expand_distances(bias, queries, keys, q_offset)

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
        """Returns the scaled scores (B, H, Lq, Lk) of a block if they are not scale·q·kᵀ + bias, else None.

        The arguments are those of :meth:`bias`. Entries of keys after their query or at padding are
        arbitrary.
        """
        decay = context.log_decay
        if decay is None or decay.dim() in (1, 3):
            return None
        return context.prepared(self.scale * q, k, context.first_row(q, k))

    @property
    def accumulates(self) -> bool:
        """Whether values that depend on the input are accumulated over consecutive tokens."""
        return self.left_context is not None

    @property
    def modifies_scores(self) -> bool:
        """Whether the scores of softmax attention can differ from scale·q·kᵀ."""
        methods = ("log_decay", "bias", "scores")
        return any(getattr(type(self), name) is not getattr(Encoding, name) for name in methods)

    def input_features(self, x: Tensor) -> Tensor:
        """Returns features of the attention layer's inputs, on which the scores depend.

        Args:
            x: inputs (B, left_context + n, E), 0 at padding and before the start of a sequence.

        Returns:
            The features (B, H, n, F). The caller sets features at padding to 0.
        """
        raise NotImplementedError

    def cached_keys(self, k: Tensor, context: Context) -> Tensor:
        """Returns the keys (B, H, Lk, d) to store, by default k, which precede those of the next call.

        Args:
            k: all keys (B, H, Lk, d): stored ones as this method returned them, then those of this call as
                :meth:`forward` returned them.
            context: the context of the call, with ``prepared``.
        """
        return k

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

    def check_positions(self, argument: str) -> None:
        """Raises a UserError if positions must be consecutive, but ``argument`` gives them other values."""
        if self.accumulates:
            raise UserError(
                f"{argument} does not support the encoding {self.name}, which accumulates values that "
                "depend on the input from token to token: omit it, or use another encoding"
            )

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        """Returns the encoding of the same keys at positions smaller by ``shift``.

        Args:
            k: encoded keys (B, H, n, d'), or sums of them, because the operation is linear.
            shift: number of positions, at least 0.

        Raises:
            ValueError: if the encoding cannot be shifted.
        """
        if type(self).forward is not Encoding.forward:
            raise ValueError(f"{self.name} cannot shift the positions of encoded keys")
        return k

    def shift_values(self, v: Tensor, shift: int) -> Tensor:
        """Returns the encoding of the same values at positions smaller by ``shift``; see ``shift_keys``."""
        if type(self).encode_values is not Encoding.encode_values:
            raise ValueError(f"{self.name} cannot shift the positions of encoded values")
        return v


def _preceding(distance):
    """Returns the distance to preceding keys, and 0 for keys after the query, which are masked."""
    return distance.clamp(min=0)


_SHARED_ARGUMENTS = inspect.signature(Encoding.__init__).parameters


def position_tables(build: Callable, q: Tensor, k: Tensor, context: Context) -> tuple:
    """Returns ``build(q, q_offset)`` and ``build(k, k_offset)``, computed once if the positions are equal."""
    q_offset, k_offset = context.q_offset, context.k_offset
    q_table = build(q, q_offset)
    if isinstance(q_offset, PositionIndex):
        same = q_offset is k_offset
    else:
        same = (q_offset, q.size(-2)) == (k_offset, k.size(-2))
    return q_table, q_table if same else build(k, k_offset)


def _starts_kernels(x):
    """Returns whether operations on x are kernels of a device, whose start takes longer than a short one."""
    return x.device.type != "cpu"


class TableEncoding(Encoding):
    """Base class of encodings that transform q and k by a table with a row for each position.

    Subclasses implement both methods. If queries and keys have equal positions, they share one table, and on
    a GPU they are encoded together.
    """

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        """Returns the table for the positions of x (B, H, L, d), (..., L, n)."""
        raise NotImplementedError

    def encode(self, x: Tensor, table: Tensor) -> Tensor:
        """Returns the encoded x (B, H, L, d), whose last dimension may be larger than d."""
        raise NotImplementedError

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        q_table, k_table = position_tables(self.position_table, q, k, context)
        if q_table is k_table and q.shape == k.shape and _starts_kernels(q):
            return self.encode(torch.cat([q, k]), q_table).chunk(2)
        return self.encode(q, q_table), self.encode(k, k_table)


def prepare_scores(encoding: Encoding, q: Tensor, k: Tensor, context: Context) -> Context:
    """Returns the context with ``log_decay`` and ``prepared``, for the calls of ``bias`` and ``scores``.

    Tables of distances then have only those of the given positions, if these are far apart.
    """
    if isinstance(context.q_offset, PositionIndex) and context.q_offset.query_positions.dim() == 1:
        context = context._replace(q_offset=context.q_offset.with_distances())
    if context.log_decay is None:
        context = context._replace(log_decay=encoding.log_decay(context))
    return context._replace(prepared=encoding.prepare(q, k, context))


def softmax_scores(encoding: Encoding, q: Tensor, k: Tensor, context: Context = START) -> Tensor:
    """Returns the scaled scores (B, H, Lq, Lk) of softmax attention for encoded q and k, as one block.

    If the encoding is causal, entries of keys after their query are arbitrary.
    """
    context = prepare_scores(encoding, q, k, context)
    scores = encoding.scores(q, k, context)
    if scores is not None:
        return scores
    scores, bias = encoding.scale * (q @ k.mT), encoding.bias(q, k, context)
    return scores if bias is None else scores + bias


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """Raises a UserError that lists the choices if the value is not one of them."""
    if value not in choices:
        listing = "`lrpe methods --flags` lists them"
        raise UserError(f"unknown {what} {value!r}{choices_for(value, choices, listing)}")


def register_encoding(name: str, **option_help: str) -> Callable[[type[Encoding]], type[Encoding]]:
    """Returns a class decorator that registers an encoding.

    Args:
        name: name of the encoding, a value of ``--encoding``.
        **option_help: help text of each option, which becomes the flag ``--<name>-<option>`` of every model.

    Raises:
        TypeError: if the help texts are not those of the class's options.
    """

    def register(cls):
        options = encoding_options(cls)
        if set(option_help) != set(options):
            raise TypeError(
                f"{cls.__name__} has options {sorted(options)} but help texts for {sorted(option_help)}: "
                "pass one for each option"
            )
        cls.name, cls.option_help = name, option_help
        ENCODINGS[name] = cls
        return cls

    return register


def encoding_options(cls: type[Encoding]) -> dict[str, object]:
    """Returns {option: default} for the constructor arguments that :class:`Encoding` does not have."""
    options = {}
    for name, p in inspect.signature(cls.__init__).parameters.items():
        if name not in _SHARED_ARGUMENTS and p.kind is not p.VAR_KEYWORD:
            if p.default is p.empty:
                raise TypeError(f"{cls.__name__}: option {name!r} needs a default")
            options[name] = p.default
    return options


def build_encoding(name: str, **arguments) -> Encoding:
    """Builds the encoding with a registered name.

    Args:
        name: a name in ``ENCODINGS``.
        **arguments: the arguments of :class:`Encoding` and the encoding's own options.

    Raises:
        ValueError: for an unknown name or option, or invalid arguments.
    """
    check_choice("encoding", name, ENCODINGS)
    cls = ENCODINGS[name]
    known = encoding_options(cls)
    for option in arguments:
        if option not in (*known, *_SHARED_ARGUMENTS):
            own = ", ".join(known) or "none"
            raise ValueError(f"encoding {name!r} has no option {option!r}; its options are: {own}")
    encoding = cls(**arguments)
    if encoding.causal or encoding.bidirectional:
        return encoding
    raise ValueError(
        f"encoding {name!r} works only in causal attention: use it in a language model or a decoder"
    )
