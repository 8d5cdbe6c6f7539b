"""Interface and registry of absolute position embeddings."""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_lrpe.ops.position_index import integer_positions
from fairseq_lrpe.ops.precision import Float32Parameters

POSITIONS: "dict[str, type[AbsolutePosition]]" = {}


class AbsolutePosition(Float32Parameters):
    """Base class of absolute position embeddings, which are combined with token embeddings.

    A row of the output depends only on its own embedding, position and token, and on those of the
    ``left_context`` rows before it and the ``right_context`` rows after it. Embedding tokens one at a time,
    each with these neighbors, must give the same result as embedding the whole sequence: exactly, or up to
    the rounding of matrix products.

    Args:
        embed_dim: embedding dimension E.
        vocab_size: number of tokens in the vocabulary.
        max_positions: length of the longest training sequence.
        padding_idx: index of the padding token, whose output is arbitrary, but finite.
        causal: whether rows must not depend on later rows, as in a decoder.
        layers: number of layers of the encoder or decoder, for embeddings in ``every_layer``.
    """

    additive = False
    """Whether the output is x + p, where p does not depend on the embeddings x."""
    left_context: float = 0
    right_context: float = 0
    """Number of preceding or following rows on which a row of the output depends; math.inf means all rows.

    If ``left_context`` is math.inf, decoding calls :meth:`step`, which continues from a state.
    """
    draws_noise = False
    """Whether each call in training mode draws new noise, so that tokens cannot be decoded one by one."""
    every_layer = False
    """Whether positions are added to the inputs of attention in every layer instead of the embeddings.

    The rows of x and of the output then have ``layers`` · E features, E for each layer.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        vocab_size: int,
        max_positions: int = 512,
        padding_idx: int = 1,
        causal: bool = False,
        layers: int = 1,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.padding_idx = padding_idx
        self.causal = causal
        self.width = embed_dim * layers if self.every_layer else embed_dim

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Returns the token embeddings with positions, in the shape and dtype of x.

        Args:
            x: token embeddings (B, L, E); zeros (B, L, layers · E) if positions are added in ``every_layer``.
            positions: positions (B, L) from 0 on, in any order and possibly repeated; arbitrary at padding.
            tokens: token indices (B, L).
        """
        raise NotImplementedError

    def step(
        self, x: Tensor, positions: Tensor, tokens: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns the output for the tokens that follow those of earlier calls, and the new state.

        Args:
            x: token embeddings of the new tokens, at least one.
            positions: positions of the new tokens.
            tokens: indices of the new tokens.
            state: the state (B, ..) after the preceding tokens, or None if there are none.
        """
        raise NotImplementedError

    def mask_padding(self, positions: Tensor, tokens: Tensor) -> Tensor:
        """Returns the positions as int64, with 0 at padding and in place of negative positions."""
        if not positions.is_floating_point():  # which CAPE and complex-order embeddings support
            positions = integer_positions(positions)
        return torch.where(tokens == self.padding_idx, 0, positions).clamp(min=0)

    def last_position(self, positions: Tensor, limit: int | None = None) -> int:
        """Returns the largest position or 0; raises a ValueError if it is not below ``limit``."""
        if positions.is_meta:  # there are no values
            last = max(0, positions.size(-1) - 1)
        else:
            last = int(positions.max()) if positions.numel() else 0
        if limit is not None and last >= limit:
            raise ValueError(
                f"{self.name} positions support sequences of at most {limit} tokens, not {last + 1}: shorten "
                "the input, or train with more positions"
            )
        return last


def register_position(name: str) -> Callable[[type[AbsolutePosition]], type[AbsolutePosition]]:
    """Returns a class decorator that registers a position embedding, a value of ``--token-positions``."""

    def register(cls):
        cls.name = name
        POSITIONS[name] = cls
        return cls

    return register


def build_position(name: str, **kwargs) -> AbsolutePosition:
    """Builds the position embedding with a registered name; raises a ValueError if the name is unknown."""
    if name not in POSITIONS:
        raise ValueError(f"unknown position embedding {name!r}: choose from {', '.join(POSITIONS)}")
    return POSITIONS[name](**kwargs)
