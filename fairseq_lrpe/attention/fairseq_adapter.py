"""Linear and softmax attention with the interface of fairseq's attention, built from flags.

fairseq's conventions are confined to this module: inputs (L, B, E), and one dictionary of incremental state
for all layers.
"""

from typing import NamedTuple

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor

from fairseq_lrpe.attention.base import AttentionState, SelfAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.encodings import Encoding
from fairseq_lrpe.ops.position_index import PositionIndex

# Strong decays produce denormal weights, which make attention on a CPU twice as slow as zeros do.
torch.set_flush_denormal(True)


class DecodingState(NamedTuple):
    """What a layer stores in fairseq's incremental state.

    Attributes:
        attention: state of the attention module.
        segment_position: number of queries since the segment began.
        segment_inputs: (B, n, E), inputs that the next segment sees as its memory.
    """

    attention: AttentionState | None = None
    segment_position: int = 0
    segment_inputs: Tensor | None = None


class FairseqSelfAttention(FairseqIncrementalState, SelfAttention):
    """Replaces ``fairseq.modules.MultiheadAttention`` as the ``self_attn`` of a layer.

    It is a subclass instead of a wrapper, so that parameters have the same names as in fairseq's attention.
    """

    time_dim = 0

    prefix_state: dict | None = None
    """Incremental state to fill when the caller passes none; set by the decoder while it reads a prefix."""

    memory: Tensor | None = None
    """Inputs (M, B, E) of earlier positions, attended to before the keys; set by the decoder layer."""

    carry_state = False
    """Whether the state is kept in ``carried_state`` for the next call, whose positions restart at 0."""

    carried_state: AttentionState | None = None
    """State after the last call with ``carry_state``."""

    position_index: PositionIndex | None = None
    """Positions of the tokens if they are not consecutive; only for bidirectional attention."""

    segment_length = 0
    """Length of a segment while decoding; 0 means that the text is not split into segments."""

    memory_length: int | None = None
    """While decoding in segments: number of positions before a segment that it sees; None means all."""

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        **_,
    ) -> tuple[Tensor, None]:
        """Computes self-attention with the call signature of fairseq's attention.

        Args:
            query: (Lq, B, E).
            key: (Lk, B, E), by default the query. If it is longer, the leading keys are earlier positions
                and the last Lq keys are those of the queries.
            value: ignored; values are computed from ``key``.
            key_padding_mask: (B, Lk), True at padding.
            incremental_state: fairseq's decoding state; the Lk positions continue those of earlier calls.
            **_: fairseq's other arguments are ignored; its ``attn_mask`` is not needed because the module
                knows whether it is causal.

        Returns:
            The output (Lq, B, E), and None in place of the attention weights that fairseq's module returns.

        Raises:
            ValueError: if there are fewer keys than queries.
        """
        if incremental_state is None:
            incremental_state = self.prefix_state
        saved = self._get_input_buffer(incremental_state) or DecodingState(self.carried_state)
        if 0 < self.segment_length == saved.segment_position:
            saved = self._next_segment(saved)
        state, position, inputs = saved
        memory = inputs.transpose(0, 1) if state is None and inputs is not None else self.memory
        if key is not None and len(key) != len(query):
            earlier = len(key) - len(query)
            if earlier < 0:
                raise ValueError(
                    f"expected at least as many keys as queries, got {len(key)} and {len(query)}"
                )
            memory = key[:earlier] if memory is None else torch.cat([memory, key[:earlier]])
        return_state = incremental_state is not None or self.carry_state
        out = super().forward(
            query,
            memory=memory,
            key_padding_mask=key_padding_mask,
            state=state,
            return_state=return_state,
            position_index=self.position_index,
        )
        if not return_state:
            return out, None
        out, state = out
        if self.carry_state:
            self.carried_state = self.restart_positions(state)
        else:
            saved = DecodingState(state, position + len(query), self._append_inputs(inputs, query))
            self.set_incremental_state(incremental_state, "attention", saved)
        return out, None

    def split_heads(self, x: Tensor) -> Tensor:
        """Splits the heads: (L, B, H·d) -> (B, H, L, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

    def merge_heads(self, o: Tensor) -> Tensor:
        """Concatenates the heads: (B, H, L, d) -> (L, B, H·d)."""
        return o.permute(2, 0, 1, 3).flatten(2)

    def _next_segment(self, saved):
        if self.memory_length is None:
            return DecodingState(self.restart_positions(saved.attention))
        return DecodingState(segment_inputs=saved.segment_inputs[:, -self.memory_length :])

    def _append_inputs(self, inputs, query):
        """Returns the inputs of a segment and its memory, (B, n, E), if the next segment needs them."""
        if not (self.segment_length and self.memory_length):
            return None
        query = query.transpose(0, 1)
        return query if inputs is None else torch.cat([inputs, query], dim=1)

    def _get_input_buffer(self, incremental_state):
        return self.get_incremental_state(incremental_state, "attention")

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Lets batch row i continue from what was row ``new_order[i]``, for beam search."""
        saved = self._get_input_buffer(incremental_state)
        if saved is not None:
            state, position, inputs = saved
            inputs = None if inputs is None else inputs.index_select(0, new_order)
            saved = DecodingState(self.reorder_state(state, new_order), position, inputs)
            self.set_incremental_state(incremental_state, "attention", saved)


class FairseqLinearAttention(FairseqSelfAttention, LinearAttention):
    """:class:`LinearAttention` with the interface of fairseq's attention."""


class FairseqSoftmaxAttention(FairseqSelfAttention, SoftmaxAttention):
    """:class:`SoftmaxAttention` with the interface of fairseq's attention."""


def build_attention(
    cfg: PositionConfig, *, dropout: float, shared: list[Encoding] | None = None, **arguments
) -> FairseqSelfAttention:
    """Builds the attention module that the flags select.

    Args:
        cfg: the flags.
        dropout: dropout probability of the attention weights (softmax attention only).
        shared: one list for all layers of an encoder or decoder. The first layer stores an encoding that is
            ``shared_across_layers`` in it, and the other layers reuse it.
        **arguments: passed on to :func:`fairseq_lrpe.config.encoding_from_config`.

    Raises:
        ValueError: if the flags are invalid or cannot be combined.
    """
    encoding = shared[0] if shared else encoding_from_config(cfg, **arguments)
    if shared == [] and encoding.shared_across_layers:
        shared.append(encoding)
    if cfg.attention == "linear":
        return FairseqLinearAttention(encoding, cfg.linear_norm, cfg.feature_map, cfg.linear_backend)
    return FairseqSoftmaxAttention(encoding, dropout)
