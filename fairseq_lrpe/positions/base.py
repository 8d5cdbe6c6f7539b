"""What an absolute position is, and the registry of them."""

import torch
from torch import nn

POSITIONS = {}


class AbsolutePosition(nn.Module):
    """Token embeddings with positions.

    A row of the output depends on its own embedding, position and token alone, so that embedding tokens
    one at a time gives exactly what embedding the whole sequence gives.

    Args:
        embed_dim: E.
        vocab_size: how many tokens there are.
        max_positions: the longest sequence of training.
        padding_idx: the token that is padding; the output there is finite, no more.
    """

    additive = False
    """Class attribute: x + p, with a p that does not depend on x."""

    def __init__(self, *, embed_dim, vocab_size, max_positions=512, padding_idx=1):
        super().__init__()
        self.embed_dim = embed_dim
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.padding_idx = padding_idx

    def forward(self, x, positions, tokens):
        """The embeddings x (B, L, E), in their own dtype, with their positions.

        positions (B, L) count from 0, in any order and as often as they like; tokens (B, L).
        """
        raise NotImplementedError

    def places(self, positions, tokens):
        """The positions with padding at 0, and the largest of them."""
        places = torch.where(tokens == self.padding_idx, 0, positions).clamp(min=0)
        return places, int(places.max()) if places.numel() else 0


def register_position(name):
    """Class decorator: ``name`` is what :func:`build_position` takes."""

    def register(cls):
        cls.name = name
        POSITIONS[name] = cls
        return cls

    return register


def build_position(name, **kwargs):
    """An absolute position by name. ValueError for an unknown one."""
    if name not in POSITIONS:
        raise ValueError(f"unknown position {name!r}: choose from {', '.join(POSITIONS)}")
    return POSITIONS[name](**kwargs)
