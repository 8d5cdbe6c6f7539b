"""Absolute position embeddings of tokens in fairseq's encoder and decoder."""

import math
from functools import partial

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.utils import make_positions
from torch import Tensor, nn

from fairseq_lrpe.attention.fairseq_adapter import AddedArguments
from fairseq_lrpe.models.layers import self_attentions
from fairseq_lrpe.positions import POSITIONS, build_position
from fairseq_lrpe.utils.errors import UserError


def add_token_positions(module, args, max_positions):
    """Sets ``embed_positions`` to the module that the flags select.

    Raises a UserError if --randomized-positions does not fit this module.
    """
    count = module.randomized_positions
    embedding = module.embed_positions
    if count:
        check_number_of_positions(count, max_positions, embedding)
    if args.token_positions in POSITIONS:
        attentions = self_attentions(module)
        position = build_position(
            args.token_positions,
            embed_dim=getattr(module.args, f"{module.part}_embed_dim"),
            vocab_size=len(module.dictionary),
            max_positions=count or max_positions,
            padding_idx=module.padding_idx,
            causal=module.part == "decoder",
            layers=len(attentions),
        )
        project = getattr(module, "project_in_dim", None)
        module.embed_positions = TokenPositions(
            position, module.embed_tokens, module.embed_scale, attentions, project
        )
    elif isinstance(embedding, SinusoidalPositionalEmbedding):
        module.embed_positions = SinusoidalPositions(embedding, count)
    elif count and isinstance(embedding, LearnedPositionalEmbedding):
        module.embed_positions = LearnedPositions(embedding)


def check_number_of_positions(count: int, max_positions: int, embedding: nn.Module | None) -> None:
    """Raises a UserError if ``count`` positions are too few for the model, or too many for its table."""
    if count < max_positions:
        raise UserError(
            f"--randomized-positions {count} is below the maximum length of {max_positions} tokens: pass at "
            f"least {max_positions}, or a smaller maximum length"
        )
    if isinstance(embedding, LearnedPositionalEmbedding) and embedding.max_positions < count:
        raise UserError(
            f"--randomized-positions {count} exceeds the table of {embedding.max_positions} learned token "
            f"positions: set the maximum length of the model to {count}"
        )


class SinusoidalPositions(AddedArguments, SinusoidalPositionalEmbedding):
    """fairseq's sinusoidal positions, except that the positions (L,) of tokens (B, L) can be given.

    Beyond the table, each decoding step computes one row; fairseq computes the whole table again. The values
    are the same.
    """

    def __init__(self, original: SinusoidalPositionalEmbedding, count: int = 0):
        rows = max(len(original.weights), original.padding_idx + 1 + count)
        super().__init__(original.embedding_dim, original.padding_idx, rows)

    def forward(self, input, incremental_state=None, timestep=None, positions=None):
        if positions is not None:
            return self.weights[position_rows(input, self.padding_idx, positions)]
        row = self.padding_idx + input.size(1)
        if incremental_state is None or timestep is not None or row < len(self.weights):
            return super().forward(input, incremental_state, timestep, positions)
        half = self.embedding_dim // 2
        frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10000) / (half - 1)))
        angles = row * frequencies
        position = torch.cat([angles.sin(), angles.cos(), angles.new_zeros(self.embedding_dim % 2)])
        return position.to(self.weights).expand(len(input), 1, -1)


class LearnedPositions(AddedArguments, LearnedPositionalEmbedding):
    """fairseq's learned positions, except that the positions (L,) of tokens (B, L) can be given."""

    def __init__(self, original: LearnedPositionalEmbedding):
        super().__init__(original.num_embeddings, original.embedding_dim, original.padding_idx)
        self.weight = original.weight

    def forward(self, input, incremental_state=None, positions=None):
        if positions is None:
            return super().forward(input, incremental_state)
        return nn.Embedding.forward(self, position_rows(input, self.padding_idx, positions))


def position_rows(tokens: Tensor, padding_idx: int, positions: Tensor | None = None) -> Tensor:
    """Returns the row of each token (B, L) in fairseq's tables of positions: 1 + ``padding_idx`` + position.

    Token n of a text, not counting padding, is at ``positions[n]``, by default n. Padding has the row
    ``padding_idx``.
    """
    rows = make_positions(tokens, padding_idx)
    if positions is None:
        return rows
    given = positions[(rows - padding_idx - 1).clamp(min=0)] + padding_idx + 1
    return torch.where(tokens == padding_idx, rows, given)


class TokenPositions(AddedArguments, FairseqIncrementalState, nn.Module):
    """Replacement for the module ``embed_positions``, whose output fairseq adds to the scaled embeddings.

    If the position embedding is not additive (see ``AbsolutePosition.additive``), this module also computes
    the scaled embeddings x, which ``project`` maps to the model's dimension if it differs, and returns the
    difference between x with positions and x. Positions in ``every_layer`` are added to the inputs of the
    ``attentions`` of the layers instead, and 0 is returned.
    """

    max_positions = int(1e5)

    def __init__(self, position, embed_tokens, scale, attentions, project=None):
        super().__init__()
        self.position = position
        self.embed_tokens = embed_tokens
        self.project = project
        self.scale = scale
        if position.every_layer:
            for layer, attention in enumerate(attentions):
                attention.register_forward_pre_hook(partial(self._add_part, layer), with_kwargs=True)
        self.parts = [None] * len(attentions)

    def forward(self, tokens, incremental_state=None, prefix_state=None, positions=None):
        """Returns the term to add (B, L, E) for tokens (B, L), or (B, 1, E) for the last one in decoding.

        If tokens are a prefix that is decoded in one call, ``prefix_state`` is the incremental state of the
        calls that follow. ``positions`` (L,) replace the positions 0, 1, ..
        """
        has_state = incremental_state is not None or prefix_state is not None
        if has_state and self.training and self.position.draws_noise:
            raise UserError(
                f"{self.position.name} positions draw new noise in each decoding step in training mode: call "
                "eval() before decoding"
            )
        padding_idx = self.position.padding_idx
        positions = position_rows(tokens, padding_idx, positions) - padding_idx - 1
        if incremental_state is None:
            return self._offsets(tokens, positions, prefix_state)
        # fairseq passes all previous tokens, too.
        last = 1 if self.position.left_context == math.inf else self.position.left_context + 1
        return self._offsets(tokens[:, -last:], positions[:, -last:], incremental_state)[:, -1:]

    def _offsets(self, tokens, positions, incremental_state):
        if self.position.additive:
            like = next(self.embed_tokens.parameters())  # those of the position can be kept in float32
            p = self.position(like.new_zeros(*tokens.shape, self.position.width), positions, tokens)
            if self.position.every_layer:
                self.parts = list(p.transpose(0, 1).chunk(len(self.parts), dim=-1))
                return p.new_zeros(1, 1, 1)
            return p
        x = self.scale * self.embed_tokens(tokens)
        x = x if self.project is None else self.project(x)
        if incremental_state is None or self.position.left_context != math.inf:
            return self.position(x, positions, tokens) - x
        state = self.get_incremental_state(incremental_state, "position")
        out, state = self.position.step(x, positions, tokens, state)
        self.set_incremental_state(incremental_state, "position", state)
        return out - x

    def _add_part(self, layer, _, args, kwargs):
        part = self.parts[layer]
        self.parts[layer] = None  # frees it
        query = kwargs["query"]
        return args, kwargs | {"query": query + part.to(query.dtype)}

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Replaces batch row i of the state by row ``new_order[i]``, for beam search."""
        state = self.get_incremental_state(incremental_state, "position")
        if state is not None:
            state = state.index_select(0, new_order)
            self.set_incremental_state(incremental_state, "position", state)
