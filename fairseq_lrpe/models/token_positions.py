"""Puts absolute token positions where fairseq's models add theirs."""

from fairseq.utils import make_positions
from torch import nn

from fairseq_lrpe.positions import POSITIONS, build_position


def place_tokens(coder, args, max_positions):
    """Gives fairseq's encoder or decoder the token positions of ``args``, unless they are fairseq's own."""
    if args.token_positions in POSITIONS:
        position = build_position(
            args.token_positions,
            embed_dim=coder.embed_tokens.embedding_dim,
            vocab_size=len(coder.dictionary),
            max_positions=max_positions,
            padding_idx=coder.padding_idx,
            causal=coder.part == "decoder",
        )
        coder.embed_positions = TokenPositions(position, coder.embed_tokens, coder.embed_scale)


class TokenPositions(nn.Module):
    """Stands in for fairseq's ``embed_positions`` and returns what is added to the scaled embeddings.

    A position that is no addition (``position.additive``) needs the embeddings themselves: they are looked up
    once more.

    Args:
        position: a :class:`fairseq_lrpe.positions.AbsolutePosition`.
        embed_tokens, scale: the model's embedding and what it multiplies it by.
    """

    max_positions = int(1e5)

    def __init__(self, position, embed_tokens, scale):
        super().__init__()
        self.position = position
        self.embed_tokens = embed_tokens
        self.scale = scale

    def forward(self, tokens, incremental_state=None):
        """Returns (B, L, E) for (B, L) tokens, or (B, 1, E) for the last one while decoding."""
        places = make_positions(tokens, self.position.padding_idx) - self.position.padding_idx - 1
        if incremental_state is not None:  # fairseq gives all tokens so far, and searches reorder them
            last = self.position.before + 1
            return self._added(tokens[:, -last:], places[:, -last:])[:, -1:]
        return self._added(tokens, places)

    def _added(self, tokens, places):
        if self.position.additive:
            like = next(self.position.parameters())
            return self.position(like.new_zeros(*tokens.shape, self.position.embed_dim), places, tokens)
        x = self.scale * self.embed_tokens(tokens)
        return self.position(x, places, tokens) - x
