"""Interface and registry of positional encodings.

An encoding overrides one or more of :meth:`Encoding.forward`, :meth:`Encoding.bias` and
:meth:`Encoding.log_decay`. The module :mod:`.mixins` has what only few encodings need.
"""

import inspect
from collections.abc import Callable

from torch import Tensor

from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.decay_scores import decay_bias
from fairseq_lrpe.encodings.mixins import Traits, check_mixins
from fairseq_lrpe.ops.position_index import as_positions
from fairseq_lrpe.ops.precision import Float32Parameters
from fairseq_lrpe.utils.suggest import check_choice

ENCODINGS: "dict[str, type[Encoding]]" = {}


class Encoding(Traits, Float32Parameters):
    """Base class of positional encodings in self-attention, which by default do not change attention.

    q, k and v are (B, H, L, d). Query i is at position ``context.q_offset + i`` and key j at
    ``context.k_offset + j``. Encoding positions one at a time must give exactly the same result as encoding
    the whole sequence. An offset is a number or a ``PositionIndex``; the functions in ``ops.rotation``,
    ``ops.permutation`` and ``ops.relative`` accept both. ``bash scripts/test.sh --encoding NAME`` tests an
    encoding against this interface.

    Subclasses declare their options as keyword arguments with defaults, and pass the arguments below to this
    class as ``**shared``.

    Args:
        num_heads: number of attention heads H.
        head_dim: head dimension d.
        causal: whether attention is causal.
        layer: index of the attention layer, starting at 1.
        layers: total number of attention layers, by default ``layer``.
        max_positions: length of the longest training sequence, for formulas that depend on it. CosFormer and
            TUPE raise a ValueError for longer sequences.
        axes: number of coordinates of a position, 1 for sequences and 2 for a grid. With more than 1,
            positions must be given as a ``PositionIndex``.
    """

    name = "encoding"
    """Name of the encoding in messages; :func:`register_encoding` sets it."""

    decomposable = True
    """Whether q and k are encoded independently of each other, which linear attention requires."""

    bidirectional = True
    """Whether the encoding supports attention that is not causal; False if it overrides ``log_decay``."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        check_mixins(cls)
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
                "positions with one coordinate"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        self.layer = layer
        self.layers = layers
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
            if as_positions(offset).coordinate_shape != (self.axes,):
                raise ValueError(
                    f"{self.name} encodes positions with {self.axes} coordinates: pass position_index, such "
                    "as grid_position_index(rows, columns), to attention, or positions to apply_encoding"
                )

    def log_decay(self, context: Context = START) -> Tensor | None:
        """Returns the logarithm of the decay, at most 0, or None for no decay; -inf is the decay 0.

        Only causal attention decays. With shape (H,), linear attention multiplies q_i·k_j by the decay
        exp(log_decay·(i−j)), and softmax attention adds log_decay·(i−j) to the scores, as ALiBi does (Press
        et al. 2022). With shape (H, d), or (1, d) for all heads, each feature t has its own decay: q_i·k_j
        becomes Σ_t exp(log_decay_t·(i−j)) q_it k_jt in both kinds of attention. With shape (H, 1), all
        features of a head have the same decay.

        A decay that depends on the layer's input has shape (B, H, n) or (B, H, n, d) for the n keys of
        ``context.features``, and is 0 at padding. Σ_{l=j+1..i} log_decay_l then replaces log_decay·(i−j).
        """
        return None

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        """Returns the encoded (q, k); their last dimension may be larger than d."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
        """Returns the term that softmax attention adds to the scaled scores, or None for no term.

        The default is the term of ``log_decay``. A subclass that has a decay and overrides this method must
        add that term.

        Args:
            q: a block of queries as returned by :meth:`forward`.
            k: keys as returned by :meth:`forward`, at positions 0..Lk-1, if causal only up to the last query.
            context: the context of the block.

        Returns:
            A tensor broadcastable to (B, H, Lq, Lk). If causal, entries of keys after their query are
            arbitrary, but finite.
        """
        return decay_bias(q, k, context)


_SHARED_ARGUMENTS = inspect.signature(Encoding.__init__).parameters


def overrides(encoding: Encoding | type[Encoding], name: str) -> bool:
    """Returns whether an encoding's class overrides the method ``name`` of :class:`Encoding`."""
    cls = encoding if isinstance(encoding, type) else type(encoding)
    return getattr(cls, name) is not getattr(Encoding, name)


def check_positions(encoding: Encoding, argument: str) -> None:
    """Raises a ValueError if the encoding requires consecutive positions, but ``argument`` gives others."""
    if encoding.accumulates:
        raise ValueError(
            f"{argument} does not support the encoding {encoding.name}, which accumulates values that "
            "depend on the input from token to token: omit it, or use another encoding"
        )


def register_encoding(name: str, **option_help: str) -> Callable[[type[Encoding]], type[Encoding]]:
    """Returns a class decorator that registers an encoding.

    Args:
        name: name of the encoding, a value of ``--encoding``.
        **option_help: help text of each option, which becomes the flag ``--<name>-<option>`` of every model.
            Those of options that are inherited from a registered class can be omitted.

    Raises:
        TypeError: if the help texts are not those of the class's options.
        ValueError: if the name is not an identifier, or is that of another class.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot be the name of an encoding: use letters, digits and underscores")

    def register(cls):
        known = ENCODINGS.get(name)
        # A class that is defined again, such as in a notebook, replaces itself.
        if known and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the encoding {name!r} exists already: choose another name")
        options = encoding_options(cls)
        inherited = {option: getattr(cls, "option_help", {}).get(option) for option in options}
        texts = {option: text for option, text in inherited.items() if text is not None} | option_help
        if set(texts) != set(options):
            raise TypeError(
                f"{cls.__name__} has options {sorted(options)} but help texts for {sorted(texts)}: "
                "pass one for each option"
            )
        cls.name = name
        cls.option_help = texts
        ENCODINGS[name] = cls
        return cls

    return register


def encoding_options(cls: type[Encoding]) -> dict[str, object]:
    """Returns {option: default} for the constructor arguments that :class:`Encoding` does not have."""
    options = {}
    for name, p in inspect.signature(cls.__init__).parameters.items():
        if name not in _SHARED_ARGUMENTS and p.kind is not p.VAR_KEYWORD:
            if p.default is p.empty:
                raise TypeError(f"the option {name!r} of {cls.__name__} has no default: add one")
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
    check_choice("encoding", name, ENCODINGS, "fairseq_lrpe.encodings.ENCODINGS has all names")
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
