"""Absolute position embeddings of tokens in fairseq's encoders and decoders."""

from fairseq.utils import make_positions
from torch import nn

from fairseq_lrpe.positions import POSITIONS, build_position


def add_token_positions(module, args, max_positions):
    """Replaces the position embeddings of an encoder or decoder, unless ``args`` select fairseq's own."""
    if args.token_positions in POSITIONS:
        position = build_position(
            args.token_positions,
            embed_dim=module.embed_tokens.embedding_dim,
            vocab_size=len(module.dictionary),
            max_positions=max_positions,
            padding_idx=module.padding_idx,
            causal=module.part == "decoder",
        )
        module.embed_positions = TokenPositions(position, module.embed_tokens, module.embed_scale)


class TokenPositions(nn.Module):
    """Replacement for fairseq's ``embed_positions``, whose output is added to the scaled embeddings.

    Positions that are not additive (see ``position.additive``) transform the embeddings themselves, which
    this module looks up again.

    Args:
        position: a :class:`fairseq_lrpe.positions.AbsolutePosition`.
        embed_tokens: the model's token embedding.
        scale: factor of the token embeddings.
    """

    max_positions = int(1e5)

    def __init__(self, position, embed_tokens, scale):
        super().__init__()
        self.position = position
        self.embed_tokens = embed_tokens
        self.scale = scale

    def forward(self, tokens, incremental_state=None):
        """Returns (B, L, E) for (B, L) tokens, or (B, 1, E) for the last one while decoding."""
        positions = make_positions(tokens, self.position.padding_idx) - self.position.padding_idx - 1
        if incremental_state is not None:  # fairseq passes all tokens so far, reordered by its search
            last = self.position.left_context + 1
            return self._offsets(tokens[:, -last:], positions[:, -last:])[:, -1:]
        return self._offsets(tokens, positions)

    def _offsets(self, tokens, positions):
        if self.position.additive:
            like = next(self.position.parameters())
            return self.position(like.new_zeros(*tokens.shape, self.position.embed_dim), positions, tokens)
        x = self.scale * self.embed_tokens(tokens)
        return self.position(x, positions, tokens) - x
