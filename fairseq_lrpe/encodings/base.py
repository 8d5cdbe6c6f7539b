"""Interface and registry of positional encodings."""

import functools
import inspect
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fairseq_lrpe.ops.decay import decayed_products, finite_log_decay
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.precision import Float32Parameters
from fairseq_lrpe.ops.relative import expand_distances
from fairseq_lrpe.utils.suggest import choices as choices_for

ENCODINGS = {}


class Encoding(Float32Parameters):
    """Base class of positional encodings in self-attention; by default, every method is a no-op.

    q, k and v are (B, H, L, d). Query i is at position ``q_offset + i`` and key j at ``k_offset + j``.
    Encoding positions one at a time, with offsets, must give exactly the same result as encoding the whole
    sequence. Offsets are non-negative integers, or a :class:`fairseq_lrpe.ops.position_index.PositionIndex`
    if positions are not consecutive; the functions in ``ops.rotation``, ``ops.permutation`` and
    ``ops.relative`` accept both. ``bash scripts/test.sh --encoding NAME`` tests an encoding against this
    interface.

    Subclasses declare their options as keyword arguments with defaults, and pass the arguments below to this
    class as ``**shared``.

    Args:
        num_heads: number of attention heads H.
        head_dim: head dimension d.
        causal: whether attention is causal.
        layer: index of the attention layer, starting at 1.
        layers: total number of attention layers, by default ``layer``.
        max_positions: length of the longest training sequence, for formulas that depend on it.
        axes: number of coordinates of a position, 1 for sequences and 2 for a grid.
    """

    decomposable = True
    """Whether q and k are encoded independently of each other, which linear attention requires."""

    relative = True
    """Whether scores depend on the positions of query and key only through their difference."""

    bidirectional = True
    """Whether the encoding also works in attention that is not causal."""

    uses_absolute_positions = False
    """Whether scores depend on absolute positions, which excludes a memory of preceding segments."""

    has_position_limit = False
    """Whether positions of ``max_positions`` or more raise a ValueError."""

    multidimensional = False
    """Whether positions can have two coordinates, those of a ``PositionIndex``."""

    shared_across_layers = False
    """Whether all attention layers of an encoder or decoder share one module."""

    uses_distance_table = False
    """Whether values are looked up by distance, so that ``clamp_length`` can be set."""

    multiplicative_decay = False
    """Whether softmax attention multiplies scores by the decay instead of adding its logarithm to them."""

    clamp_length = 0
    """Maximum distance in an evaluation, which replaces larger distances; 0 means no maximum."""

    query_bias: Tensor | None = None
    """u (H, d) if :meth:`forward` only adds u to the queries, otherwise None."""

    def __init_subclass__(cls, **kwargs):
        """Derives one of :meth:`bias` and :meth:`bias_function` from the other if a class defines only one.

        Both are then those of the same class, and each can call both methods of ``super()``.
        """
        super().__init_subclass__(**kwargs)
        owner = vars(next(c for c in cls.__mro__ if vars(c).keys() & {"bias", "bias_function"}))
        if "bias" not in owner:

            @functools.wraps(Encoding.bias)
            def bias(self, q, k, q_offset=0):
                return owner["bias_function"](self, q, k, q_offset)(q, k, q_offset)

            cls.bias = bias
        elif "bias_function" not in owner:

            @functools.wraps(Encoding.bias_function)
            def bias_function(self, q, k, q_offset=0):
                return functools.partial(owner["bias"], self)

            cls.bias_function = bias_function

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
        if axes > 1 and not self.multidimensional:
            known = " or ".join(name for name, cls in ENCODINGS.items() if cls.multidimensional)
            raise ValueError(
                f"{self.name} does not support positions with {axes} coordinates: use {known}, or pass "
                "--image-positions sum or flat"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        self.layer, self.layers = layer, layers or layer
        self.max_positions = max_positions
        self.axes = axes
        self.scale = head_dim**-0.5
        """Factor of q·k in softmax attention; a bias is not multiplied by it."""

    @property
    def log_decay(self) -> Tensor | None:
        """Logarithm of the decay in causal attention, at most 0, or None for no decay; -inf is the decay 0.

        With shape (H,), linear attention multiplies q_i·k_j by the decay exp(log_decay·(i−j)). Softmax
        attention adds log_decay·(i−j) to the scores, as ALiBi does (Press et al. 2022), or multiplies the
        scores by the decay if ``multiplicative_decay``. With shape (H, d), or (1, d) for all heads, each
        feature t has its own decay: q_i·k_j becomes Σ_t exp(log_decay_t·(i−j)) q_it k_jt.
        """
        return None

    def forward(self, q: Tensor, k: Tensor, q_offset: int = 0, k_offset: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the encoded (q, k); their last dimension may be larger than d."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor | None:
        """Returns the term that softmax attention adds to the scaled scores, or None for no term.

        Args:
            q: queries as returned by :meth:`forward`.
            k: keys as returned by :meth:`forward`, at positions 0..Lk-1, if causal only up to the last query.
            q_offset: position of the first query.

        Returns:
            A tensor broadcastable to (B, H, Lq, Lk). If causal, entries of keys after their query are
            arbitrary, but finite.
        """
        decay = self.log_decay
        if decay is None or decay.dim() > 1 or self.multiplicative_decay:
            return None
        queries, keys = q.size(-2), k.size(-2)
        if isinstance(q_offset, PositionIndex):
            last = q_offset.max_position
            distance = torch.arange(last, -last - 1, -1, device=decay.device).clamp(min=0)
        else:
            distance = torch.arange(q_offset + queries - 1, -1, -1, device=decay.device)
        bias = (finite_log_decay(decay)[:, None] * distance).to(q.device, q.dtype)
        return expand_distances(bias, queries, keys, q_offset)

    @property
    def modifies_scores(self) -> bool:
        """Whether the scores of softmax attention can differ from scale·q·kᵀ."""
        methods = ("bias", "bias_function", "score_function")
        overridden = any(getattr(type(self), name) is not getattr(Encoding, name) for name in methods)
        return overridden or self.log_decay is not None

    def bias_function(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Callable[..., Tensor | None]:
        """Returns a function that computes :meth:`bias` for blocks of the queries and their visible keys.

        Subclasses override it instead of :meth:`bias` if all blocks share a part of the computation.
        """
        return functools.partial(Encoding.bias, self)

    left_context: int | None = None
    """Number of preceding inputs that :meth:`input_features` needs, or None if it is not implemented."""

    def input_features(self, x: Tensor) -> Tensor:
        """Returns features of the attention layer's inputs, on which the scores depend.

        Args:
            x: inputs (B, left_context + n, E), 0 at padding and before the start of a sequence.

        Returns:
            The features (B, H, n, ...). The caller sets features at padding to 0.
        """
        raise NotImplementedError

    def score_function(
        self,
        q: Tensor,
        k: Tensor,
        q_offset: int = 0,
        key_padding_mask: Tensor | None = None,
        input_features: Tensor | None = None,
    ) -> Callable[..., Tensor] | None:
        """Returns a function that computes the scores if they are not scale·q·kᵀ + bias, otherwise None.

        The function has the arguments of :meth:`bias`, for a block of the queries and their visible keys. It
        returns the scaled scores (B, H, Lq, Lk). Entries of keys after their query or at padding are
        arbitrary.

        Args:
            q: queries as returned by :meth:`forward`.
            k: keys as returned by :meth:`forward`, preceded by those of earlier calls, as returned by
                :meth:`cached_keys`.
            q_offset: position of the first query.
            key_padding_mask: (B, Lk), True at padding.
            input_features: the :meth:`input_features` of the new keys, which are the last ones.
        """
        decay = self.log_decay
        if decay is None or (decay.dim() == 1 and not self.multiplicative_decay):
            return None
        products = decayed_products(decay if decay.dim() > 1 else decay[:, None], q, k)
        return lambda q, k, q_offset=0: products(self.scale * q, k, q_offset)

    def cached_keys(self, k: Tensor, scores: Callable[..., Tensor] | None) -> Tensor:
        """Returns the keys to cache for later calls; ``scores`` is the result of :meth:`score_function`."""
        return k

    needs_weights = False
    """Whether softmax attention calls :meth:`output_from_weights`."""

    def output_from_weights(self, weights: Tensor, q_offset: int = 0) -> Tensor:
        """Returns a term to add to the output (B, H, Lq, d), given the attention weights (B, H, Lq, Lk)."""
        raise NotImplementedError

    def encode_values(self, v: Tensor, offset: int = 0) -> Tensor:
        """Returns the encoded values, where row j is at position ``offset + j``."""
        return v

    def decode_output(self, o: Tensor, offset: int = 0) -> Tensor:
        """Returns the transformed output of attention, where row i is at position ``offset + i``."""
        return o

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


_SHARED_ARGUMENTS = inspect.signature(Encoding.__init__).parameters


def position_tables(build: Callable, q: Tensor, k: Tensor, q_offset: int, k_offset: int) -> tuple:
    """Returns ``build(q, q_offset)`` and ``build(k, k_offset)``, computed once if the positions are equal."""
    q_table = build(q, q_offset)
    if isinstance(q_offset, PositionIndex):
        same = q_offset is k_offset
    else:
        same = (q_offset, q.size(-2)) == (k_offset, k.size(-2))
    return q_table, q_table if same else build(k, k_offset)


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """Raises a ValueError that lists the choices if the value is not one of them."""
    if value not in choices:
        listing = "`lrpe methods --flags` lists them"
        raise ValueError(f"unknown {what} {value!r}{choices_for(value, choices, listing)}")


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
                f"{cls.__name__} has options {sorted(options)} but help texts for {sorted(option_help)}"
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
    if encoding.causal:
        return encoding
    if encoding.log_decay is not None:
        reason = "decays with the distance, which requires causal attention"
    elif not encoding.bidirectional:
        reason = "works only in causal attention"
    else:
        return encoding
    raise ValueError(f"encoding {name!r} {reason}: use it in a language model or a decoder")
