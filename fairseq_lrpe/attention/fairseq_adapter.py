"""Linear and softmax attention with the interface of fairseq's attention, built from flags.

In this package, only this module uses fairseq's conventions: inputs are (L, B, E), and all layers share one
dictionary of incremental state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor

from fairseq_lrpe.attention.base import AttentionState, SelfAttention
from fairseq_lrpe.attention.delta import DeltaAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.config_parts import has_other_encoding, layer_config
from fairseq_lrpe.encodings import Encoding
from fairseq_lrpe.ops.position_index import PositionIndex, integer_positions


class DecodingState(NamedTuple):
    """Data that an attention module stores in fairseq's incremental state, in place of fairseq's dictionary.

    Attributes:
        attention: state of the attention module.
        segment_position: number of queries since the start of the segment.
        segment_inputs: inputs (B, n, E) from which the memory of the next segment is taken, or None.
    """

    attention: AttentionState | None = None
    segment_position: int = 0
    segment_inputs: Tensor | None = None

    def __contains__(self, name):
        # fairseq's decoder layer asks whether "prev_key" is in the state. With --cross-self-attention, it
        # passes the keys of the source only if not, because a state already contains them.
        return name == "prev_key"


class AddedArguments:
    """Mixin for modules to whose calls :func:`with_arguments` adds arguments.

    Hooks could add them, too, but torch.compile would not notice changes of hooks.
    """

    added_arguments = {}

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **(kwargs | self.added_arguments))


class FairseqSelfAttention(AddedArguments, FairseqIncrementalState, SelfAttention):
    """Base class of the modules that replace ``fairseq.modules.MultiheadAttention`` as ``self_attn``.

    Subclasses also extend ``LinearAttention`` or ``SoftmaxAttention``, instead of wrapping it, so that
    parameters have fairseq's names.

    Args:
        encoding: the positional encoding; it also determines the number of heads, the head dimension and
            whether attention is causal.
        **options: the other arguments of the attention module.
    """

    def __init__(self, encoding: Encoding, **options):
        super().__init__(encoding.num_heads * encoding.head_dim, encoding.num_heads, encoding, **options)

    time_dim = 0

    segment_length = 0
    """Number of positions in a segment during decoding; 0 means that the text is not split into segments."""

    memory_length: int | None = None
    """Number of positions before a segment to which the segment attends in decoding; None means all."""

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        *,
        keys: Tensor | None = None,
        memory: Tensor | None = None,
        position_index: PositionIndex | None = None,
        state: AttentionState | None = None,
        return_state: bool = False,
        document_ids: None = None,
        **_,
    ) -> tuple[Tensor, AttentionState | None]:
        """Computes self-attention with the call signature of fairseq's attention.

        fairseq's layers do not pass the keyword-only arguments; :func:`with_arguments` adds them.

        Args:
            query: inputs (Lq, B, E).
            key: inputs (Lk, B, E), by default ``query``. If Lk > Lq, the leading ones are at earlier
                positions, and the last Lq are those of ``query``.
            value: ignored; values are computed from ``key``.
            key_padding_mask: (B, Lk), True at padding.
            incremental_state: fairseq's decoding state. The positions of this call follow those of earlier
                calls with the same state.
            keys: inputs (L, B, E) of keys and values if they differ from those of queries.
            memory: inputs (M, B, E) at earlier positions, which are additional keys.
            position_index: positions of the tokens if they are not consecutive.
            state: the state that the previous call returned, if there is no incremental state.
            return_state: whether to return the state for the next call, if there is no incremental state.
            document_ids: must be None, because fairseq's models do not pack documents.
            **_: fairseq's other arguments, which are ignored. ``attn_mask`` is not needed, because the
                encoding determines whether attention is causal.

        Returns:
            The output (Lq, B, E), and in place of fairseq's attention weights the state or None.

        Raises:
            ValueError: if there are fewer keys than queries, or for ``document_ids``.
        """
        if document_ids is not None:
            raise ValueError(
                "fairseq's attention does not support document_ids: use LinearAttention or SoftmaxAttention"
            )
        saved = self._get_input_buffer(incremental_state) or DecodingState(state)
        if 0 < self.segment_length == saved.segment_position:
            saved = self._next_segment(saved)
        state, position, inputs = saved
        if state is None and inputs is not None:
            memory = inputs.transpose(0, 1)
        if key is not None and len(key) != len(query):
            earlier = len(key) - len(query)
            if earlier < 0:
                raise ValueError(
                    f"expected at least as many keys as queries, got {len(key)} and {len(query)}: pass the "
                    "inputs of the queries as keys, too"
                )
            if memory is None:
                memory = key[:earlier]
            else:
                if key_padding_mask is not None:
                    key_padding_mask = F.pad(key_padding_mask, (len(memory), 0))
                memory = torch.cat([memory, key[:earlier]])
        result = super().forward(
            query,
            keys=keys,
            memory=memory,
            key_padding_mask=key_padding_mask,
            state=state,
            return_state=return_state or incremental_state is not None,
            position_index=position_index,
        )
        if incremental_state is None:
            return result if return_state else (result, None)
        out, state = result
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
        """Returns ``inputs`` with ``query`` appended, as (B, n, E).

        The result is None if decoding does not compute a memory from inputs.
        """
        if not (self.segment_length and self.memory_length):
            return None
        query = query.transpose(0, 1)
        return query if inputs is None else torch.cat([inputs, query], dim=1)

    def _get_input_buffer(self, incremental_state):
        # The key of the state is random: reading it would compile each layer separately.
        if incremental_state is None:
            return None
        return self.get_incremental_state(incremental_state, "attention")

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Replaces batch row i of the state by row ``new_order[i]``, for beam search."""
        saved = self._get_input_buffer(incremental_state)
        if saved is not None:
            state, position, inputs = saved
            new_order = integer_positions(new_order, "new_order")
            inputs = None if inputs is None else inputs.index_select(0, new_order.to(inputs.device))
            saved = DecodingState(self.reorder_state(state, new_order), position, inputs)
            self.set_incremental_state(incremental_state, "attention", saved)


class FairseqLinearAttention(FairseqSelfAttention, LinearAttention):
    """:class:`LinearAttention` with the interface of fairseq's attention."""


class FairseqDeltaAttention(FairseqSelfAttention, DeltaAttention):
    """:class:`DeltaAttention` with the interface of fairseq's attention."""


class FairseqSoftmaxAttention(FairseqSelfAttention, SoftmaxAttention):
    """:class:`SoftmaxAttention` with the interface of fairseq's attention."""


@contextmanager
def with_arguments(*modules: AddedArguments, **arguments) -> Iterator[None]:
    """Within the context, adds to all calls of ``modules`` arguments that fairseq's code does not pass."""
    before = [module.added_arguments for module in modules]
    for module in modules:
        module.added_arguments = module.added_arguments | arguments
    try:
        yield
    finally:
        for module, added in zip(modules, before, strict=True):
            module.added_arguments = added


class SharedEncoding:
    """The encodings of the layers of an encoder or decoder, which can be one module.

    If the encoding is ``shared_across_layers``, all layers share the one of the layer that is built first.
    """

    def __init__(self):
        self.encoding = None

    def for_layer(self, cfg: PositionConfig, **arguments) -> Encoding:
        """Returns the encoding of a layer, which is built from the flags unless it is shared.

        Args:
            cfg: the model's flags.
            **arguments: arguments of :func:`fairseq_lrpe.config.encoding_from_config`.

        Raises:
            UserError: if the flags are invalid or cannot be combined.
        """
        if self.encoding is not None:
            return self.encoding
        encoding = encoding_from_config(cfg, **arguments)
        if encoding.shared_across_layers:
            self.encoding = encoding
        return encoding


def build_attention(
    cfg: PositionConfig,
    *,
    dropout: float,
    layer: int = 1,
    shared: SharedEncoding | None = None,
    **arguments,
) -> FairseqSelfAttention:
    """Builds the attention module that a model's flags select.

    Args:
        cfg: the model's flags.
        dropout: dropout probability of the attention weights (softmax attention only).
        layer: number of the layer, counted from 1.
        shared: the same object for all layers of an encoder or decoder, or None for a single layer.
        **arguments: arguments of :func:`fairseq_lrpe.config.encoding_from_config`.

    Raises:
        UserError: if the flags are invalid or cannot be combined.
    """
    if shared is None:
        shared = SharedEncoding()
    if has_other_encoding(cfg, layer):
        cfg = layer_config(cfg, layer)
        shared = SharedEncoding()  # of this layer alone
    encoding = shared.for_layer(cfg, layer=layer, **arguments)
    if cfg.attention == "linear" and cfg.linear_rule != "additive":
        return FairseqDeltaAttention(encoding, rule=cfg.linear_rule)
    if cfg.attention == "linear":
        return FairseqLinearAttention(
            encoding,
            linear_norm=cfg.linear_norm,
            feature_map=cfg.feature_map,
            scale_queries=cfg.scale_queries,
            backend=cfg.linear_backend,
        )
    attention = FairseqSoftmaxAttention(encoding, dropout=dropout)
    attention.window = cfg.encoding_window
    return attention
