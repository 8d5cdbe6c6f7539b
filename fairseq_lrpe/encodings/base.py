"""What an encoding is, and the registry of them."""

import inspect
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from fairseq_lrpe.ops.fading import fading_products
from fairseq_lrpe.ops.relative import spread

ENCODINGS = {}


class Encoding(nn.Module):
    """Encodes positions in self-attention; everything here is the encoding that does nothing.

    q, k, v are (B, H, L, d). Query i stands at position ``q_offset + i`` and key j at ``k_offset + j``.
    Encoding positions one at a time, with offsets, has to give exactly what encoding the whole sequence
    gives. Offsets are 0 or more, or :class:`fairseq_lrpe.ops.places.Places`, where tokens do not follow one
    another; ``rotation``, ``permutation`` and ``relative`` of ``ops`` know both.
    ``bash scripts/test.sh --encoding NAME`` holds an encoding to all this.

    Args:
        num_heads, head_dim: H and d.
        causal: whether queries see no later keys.
        layer: the attention layer it serves, from 1.
        layers: how many there are; None: no more than these.
        max_positions: the longest sequence of training; formulas that need a length use it.

    A subclass adds its own options as keyword arguments with defaults, and passes the rest on.
    """

    decomposable = True
    """Class attribute: works on q and k apart, and so in linear attention."""

    relative = True
    """Class attribute: of two positions only their difference reaches a score."""

    bidirectional = True
    """Class attribute: works in attention that sees later keys as well."""

    absolute = False
    """Class attribute: a token's own position reaches a score, and so no memory can stand before it."""

    limited = False
    """Class attribute: it ends at ``max_positions``; a position beyond is a ValueError in one sentence."""

    shared_by_layers = False
    """Class attribute: one module serves all attention layers of an encoder or decoder."""

    by_distance = False
    """Class attribute: it looks distances up, and those above ``clamp_length`` as that one."""

    clamp_length = 0
    """The distance from which on all count as this one, in an evaluation; 0 is none."""

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        causal: bool,
        layer: int = 1,
        layers: int | None = None,
        max_positions: int = 512,
    ):
        super().__init__()
        if layer < 1:
            raise ValueError(f"layer counts the attention layers from 1 on, {layer} is none")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        self.layer, self.layers = layer, layers or layer
        self.max_positions = max_positions
        self.scale = head_dim**-0.5
        """What the q·k of softmax attention is multiplied by; a bias carries its own scale."""

    @property
    def log_decay(self) -> Tensor | None:
        """Returns (H,) at most 0, or None: every pair weighs exp(log_decay·(i−j)), in causal attention alone.

        In linear attention that is a factor in its sums; in softmax attention, log_decay·(i−j) is added to
        the scores, as ALiBi does (Press et al. 2022), unless :meth:`bias` is another. Of (H, d), or
        (1, d) for all heads, each feature has its own: in both attentions q_i·k_j is then
        Σ_t exp(log_decay_t·(i−j)) q_it k_jt.
        """
        return None

    def forward(self, q: Tensor, k: Tensor, q_offset: int = 0, k_offset: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the encoded (q, k); their last dimension may be wider than d."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor | None:
        """Returns what is added to the scaled scores, broadcastable to (B, H, Lq, Lk), or None.

        q and k as :meth:`forward` returned them. The keys stand at 0..Lk-1, and end with the last query
        when causal; entries of keys after their query are then arbitrary, and finite.
        """
        decay = self.log_decay
        if decay is None or decay.dim() > 1:
            return None
        distance = torch.arange(q_offset + q.size(-2) - 1, -1, -1, device=q.device)
        return spread((decay.to(q.device)[:, None] * distance).to(q.dtype), q.size(-2), k.size(-2))

    @property
    def biased(self) -> bool:
        """Returns whether softmax attention's scores can be anything but scale·q·kᵀ."""
        own = type(self).bias, type(self).scores_in_parts
        return own != (Encoding.bias, Encoding.scores_in_parts) or self.log_decay is not None

    def bias_in_parts(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Callable[..., Tensor | None]:
        """Returns :meth:`bias` as a function to call for some of these queries and the keys they may see.

        An encoding overrides it to make only once what all these calls need.
        """
        return self.bias

    looks_back: int | None = None
    """Class attribute: how many inputs before its own each of the :meth:`steps` needs; None: no steps."""

    def steps(self, x: Tensor) -> Tensor:
        """Returns what scores take of the layer's inputs themselves, (B, H, n, ..) of n positions.

        x is (looks_back + n, B, E), 0 at padding and before a sentence. What comes out at padding becomes 0.
        """
        raise NotImplementedError

    def scores_in_parts(
        self,
        q: Tensor,
        k: Tensor,
        q_offset: int = 0,
        key_padding_mask: Tensor | None = None,
        steps: Tensor | None = None,
    ) -> Callable[..., Tensor] | None:
        """Returns None, or what softmax attention's scores are where they are no scale·q·kᵀ + bias.

        That is a function to call as :meth:`bias` for some of these queries and the keys they may see; it
        returns all of the scores (B, H, Lq, Lk), scaled. Entries of keys after their query, or of padding
        (``key_padding_mask`` (B, Lk), True there), are arbitrary. ``steps`` are those of the last keys; the
        keys before them are what :meth:`settled` has made of them.
        """
        decay = self.log_decay
        return None if decay is None or decay.dim() == 1 else self.fading_scores(decay, q, k)

    def fading_scores(self, log_decay: Tensor, q: Tensor, k: Tensor) -> Callable[..., Tensor]:
        """Returns the function for :meth:`scores_in_parts` where pairs weigh exp(log_decay·(i−j)).

        ``log_decay`` is (H, d) or (1, d), of each feature, or (H, 1), of each head.
        """
        products = fading_products(log_decay, q, k)
        return lambda q, k, q_offset=0: products(self.scale * q, k, q_offset)

    def settled(self, k: Tensor, scores: Callable[..., Tensor] | None) -> Tensor:
        """Returns what later calls get of the keys of :meth:`scores_in_parts`, which returned ``scores``."""
        return k

    needs_weights = False
    """Whether softmax attention has to hand its weights to :meth:`values_from_weights`."""

    def values_from_weights(self, weights: Tensor, q_offset: int = 0) -> Tensor:
        """Returns what is added to the output (B, H, Lq, d), from the attention weights (B, H, Lq, Lk)."""
        raise NotImplementedError

    def encode_values(self, v: Tensor, offset: int = 0) -> Tensor:
        """Returns the encoded v, the row j of which stands at ``offset + j``."""
        return v

    def decode_output(self, o: Tensor, offset: int = 0) -> Tensor:
        """Returns what becomes of the attention's output, the row i of which stands at ``offset + i``."""
        return o

    def earlier(self, k: Tensor, steps: int) -> Tensor:
        """Returns encoded keys (B, H, n, d') as :meth:`forward` makes them at positions ``steps`` smaller.

        Linear in k, so that it moves a sum of encoded keys too. ValueError if the encoding cannot do that.
        """
        if type(self).forward is not Encoding.forward:
            raise ValueError(f"{self.name} cannot move keys that are encoded already to other positions")
        return k

    def earlier_values(self, v: Tensor, steps: int) -> Tensor:
        """Returns encoded values (B, H, n, d) in the same way."""
        if type(self).encode_values is not Encoding.encode_values:
            raise ValueError(f"{self.name} cannot move values that are encoded already to other positions")
        return v


_SHARED = inspect.signature(Encoding.__init__).parameters


def at_positions(table: Callable, q: Tensor, k: Tensor, q_offset: int, k_offset: int) -> tuple:
    """Returns ``table(q, q_offset)`` and ``table(k, k_offset)``, made once if the positions are the same."""
    at_q = table(q, q_offset)
    same = (q_offset, q.size(-2)) == (k_offset, k.size(-2))
    return at_q, at_q if same else table(k, k_offset)


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """Refuses, by ValueError with the choices, a value that is none of them."""
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}: choose from {', '.join(choices)}")


def register_encoding(name: str, **option_help: str) -> Callable[[type[Encoding]], type[Encoding]]:
    """Decorates a class: ``name`` is what ``--encoding`` takes; one help text for each option of the class.

    Each option becomes the flag ``--<name>-<option>`` of every model. TypeError for one without a help text.
    """

    def register(cls):
        options = encoding_options(cls)
        if set(option_help) != set(options):
            raise TypeError(f"{cls.__name__}: options {sorted(options)}, help for {sorted(option_help)}")
        cls.name, cls.option_help = name, option_help
        ENCODINGS[name] = cls
        return cls

    return register


def encoding_options(cls: type[Encoding]) -> dict[str, object]:
    """Returns {option: default} of an encoding: what its constructor takes beside the shared arguments."""
    own = {}
    for name, p in inspect.signature(cls.__init__).parameters.items():
        if name not in _SHARED and p.kind is not p.VAR_KEYWORD:
            if p.default is p.empty:
                raise TypeError(f"{cls.__name__}: option {name!r} needs a default")
            own[name] = p.default
    return own


def build_encoding(name: str, **arguments) -> Encoding:
    """Builds an encoding by name, from the arguments of :class:`Encoding` and the options of its own.

    ValueError for an unknown name or option, or a combination that cannot be.
    """
    check_choice("encoding", name, ENCODINGS)
    cls = ENCODINGS[name]
    known = encoding_options(cls)
    for option in arguments:
        if option not in (*known, *_SHARED):
            own = ", ".join(known) or "none"
            raise ValueError(f"encoding {name!r} has no option {option!r}: it has {own}")
    encoding = cls(**arguments)
    if encoding.causal:
        return encoding
    if encoding.log_decay is not None:
        reason = "fades with the distance into the past, which only causal attention knows"
    elif not encoding.bidirectional:
        reason = "counts on keys that are not after the query, as in causal attention alone"
    else:
        return encoding
    raise ValueError(f"encoding {name!r} {reason}: use it in a language model or a decoder")
