"""What an absolute position is, and the registry of them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

POSITIONS = {}


class AbsolutePosition(nn.Module):
    """Puts positions into token embeddings.

    A row of the output depends on its own embedding, position and token, and on those of the ``before`` rows
    before it and the ``after`` rows after it alone. Embedding tokens one at a time, each with these
    neighbours, gives exactly what embedding the whole sequence gives.

    Args:
        embed_dim: E.
        vocab_size: how many tokens there are.
        max_positions: the longest sequence of training.
        padding_idx: the token that is padding; the output there is finite, no more.
        causal: no row may depend on one after it, as in a decoder.
    """

    additive = False
    """Class attribute: x + p, with a p that does not depend on x."""
    before = after = 0

    def __init__(
        self,
        *,
        embed_dim: int,
        vocab_size: int,
        max_positions: int = 512,
        padding_idx: int = 1,
        causal: bool = False,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.padding_idx = padding_idx
        self.causal = causal

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Returns the embeddings x (B, L, E), in their own dtype, with their positions.

        positions (B, L) count from 0, in any order and as often as they like; tokens (B, L).
        """
        raise NotImplementedError

    def places(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, int]:
        """Returns the positions with padding at 0, and the largest of them."""
        places = torch.where(tokens == self.padding_idx, 0, positions).clamp(min=0)
        return places, int(places.max()) if places.numel() else 0


def register_position(name: str) -> Callable[[type[AbsolutePosition]], type[AbsolutePosition]]:
    """Decorates a class: ``name`` is what :func:`build_position` takes."""

    def register(cls):
        cls.name = name
        POSITIONS[name] = cls
        return cls

    return register


def build_position(name: str, **kwargs) -> AbsolutePosition:
    """Builds an absolute position by name. ValueError for an unknown one."""
    if name not in POSITIONS:
        raise ValueError(f"unknown position {name!r}: choose from {', '.join(POSITIONS)}")
    return POSITIONS[name](**kwargs)
