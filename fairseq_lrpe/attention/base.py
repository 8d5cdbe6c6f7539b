"""Base class of linear and softmax self-attention: projections, heads and incremental state."""

import math

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fairseq_lrpe.encodings import Encoding
from fairseq_lrpe.ops.position_index import PositionIndex


@with_incremental_state
class SelfAttention(nn.Module):
    """Replaces ``fairseq.modules.MultiheadAttention`` as the ``self_attn`` of a layer.

    Subclasses implement :meth:`attend`.

    Args:
        encoding: the positional encoding; it also determines the number of heads, the head dimension and
            whether attention is causal.
    """

    prefix_state: dict | None = None
    """Incremental state to fill when the caller passes none; set by the decoder while it reads a prefix."""

    memory: Tensor | None = None
    """Inputs (M, B, E) of earlier positions, attended to before the keys; set by the decoder layer."""

    carry_state = False
    """Whether the state is kept in ``carried_state`` for the next call, whose positions restart at 0."""

    carried_state: dict | None = None
    """State after the last call with ``carry_state``."""

    position_index: PositionIndex | None = None
    """Positions of the tokens if they are not consecutive; only for bidirectional attention."""

    segment_length = 0
    """Length of a segment while decoding; 0 means that the text is not split into segments."""

    memory_length: int | None = None
    """While decoding in segments: number of positions before a segment that it sees; None means all."""

    def __init__(self, encoding: Encoding):
        super().__init__()
        self.encoding = encoding
        self.num_heads = encoding.num_heads
        self.head_dim = encoding.head_dim
        self.causal = encoding.causal
        embed_dim = self.num_heads * self.head_dim
        projections = [nn.Linear(embed_dim, embed_dim) for _ in range(4)]
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = projections
        # Same initialization as fairseq's attention, so that models differ in their encoding only.
        for projection in projections[:3]:
            nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def attend(self, q, k, v, key_padding_mask, state, q_offset, k_offset, return_state, input_features):
        """Computes the outputs of all heads.

        Args:
            q: queries (B, H, Lq, d).
            k: keys (B, H, Lk, d), not yet encoded.
            v: values (B, H, Lk, d).
            key_padding_mask: (B, Lk), True at padding, or None.
            state: the state returned by the previous call, or None.
            q_offset: position of the first query.
            k_offset: position of the first key, which is the number of positions that ``state`` covers.
            return_state: whether the returned state will be used; if False, its content does not matter.
            input_features: the encoding's ``input_features`` for these keys, or None.

        Returns:
            The outputs (B, H, Lq, d) and the state for the next call, a dict.
        """
        raise NotImplementedError

    def reorder_state(self, state: dict, order: Tensor) -> dict:
        """Returns the state in which batch row i continues from what was row ``order[i]``."""
        return tree_map_only(torch.Tensor, lambda x: x.index_select(0, order), state)

    def shift_state(self, state: dict, shift: int) -> dict:
        """Returns the state as if all its positions were smaller by ``shift``.

        Raises:
            ValueError: if the state cannot be shifted.
        """
        raise ValueError(f"{type(self).__name__} keeps all positions: its state has no constant size")

    def merge_heads(self, o: Tensor) -> Tensor:
        """Concatenates the heads: (B, H, L, d) -> (L, B, H·d)."""
        return o.permute(2, 0, 1, 3).flatten(2)

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
        saved = self._get_input_buffer(incremental_state) or self._initial_buffer(self.carried_state)
        if 0 < self.segment_length == saved["segment_position"]:
            saved = self._next_segment(saved)
        key, memory = query if key is None else key, self.memory
        if saved["state"] is None and saved["segment_inputs"] is not None:
            memory = saved["segment_inputs"].transpose(0, 1)
        parts = [key]
        if memory is not None:
            parts = [memory, key]  # projected separately, so that the memory's gradient is not computed
            if key_padding_mask is not None:
                key_padding_mask = F.pad(key_padding_mask, (len(memory), 0))
        num_keys = sum(map(len, parts))
        num_earlier = num_keys - len(query)
        if num_earlier < 0:
            raise ValueError(f"expected at least as many keys as queries, got {num_keys} and {len(query)}")
        q = self._project(self.q_proj, [query])
        k, v = self._project(self.k_proj, parts), self._project(self.v_proj, parts)
        features, context = self._input_features(parts, key_padding_mask, saved["input_context"])
        return_state = incremental_state is not None or self.carry_state
        offset, index = saved["offset"], self.position_index
        offsets = (offset + num_earlier, offset) if index is None else (index, index)
        o, state = self.attend(q, k, v, key_padding_mask, saved["state"], *offsets, return_state, features)
        if self.carry_state:
            self.carried_state = self.shift_state(state, num_keys)
        elif return_state:
            saved = {
                "state": state,
                "offset": offset + num_keys,
                "segment_position": saved["segment_position"] + len(query),
                "segment_inputs": self._append_inputs(saved["segment_inputs"], query),
                "input_context": context,
            }
            self.set_incremental_state(incremental_state, "attention", saved)
        return self.out_proj(self.merge_heads(o).to(query.dtype)), None

    def _project(self, projection, parts):
        """Projects consecutive parts (n', B, E) of a sequence and splits the heads: (B, H, n, d)."""
        x = projection(parts[0]) if len(parts) == 1 else torch.cat([projection(x) for x in parts])
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _input_features(self, parts, padding, context):
        """Returns the encoding's input features, if it uses any, and the inputs that the next call needs.

        ``context`` (B, left_context, E) are the inputs before ``parts``, None at the start of a sequence.
        """
        length = self.encoding.left_context
        if length is None:
            return None, None
        x = torch.cat(parts)
        if padding is not None:
            x = x.masked_fill(padding.T[..., None], 0.0)
        context = x.new_zeros(length, *x.shape[1:]) if context is None else context.transpose(0, 1)
        x = torch.cat([context, x])
        features = self.encoding.input_features(x)
        if padding is not None:
            features = features.masked_fill(padding[:, None, :, None], 0.0)
        return features, x[len(x) - length :].transpose(0, 1)

    def _initial_buffer(self, state=None, segment_inputs=None):
        return {
            "state": state,  # what attend returned
            "offset": 0,  # positions that the state covers
            "segment_position": 0,  # queries read since the segment began
            "segment_inputs": segment_inputs,  # (B, n, E), the memory of the next segment
            "input_context": None,  # (B, left_context, E), last inputs of an encoding that looks at them
        }

    def _next_segment(self, saved):
        if self.memory_length is None:
            return self._initial_buffer(self.shift_state(saved["state"], saved["offset"]))
        return self._initial_buffer(segment_inputs=saved["segment_inputs"][:, -self.memory_length :])

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
            rows = {name: saved[name] for name in ("segment_inputs", "input_context")}
            rows = {name: x.index_select(0, new_order) for name, x in rows.items() if x is not None}
            saved = {**saved, "state": self.reorder_state(saved["state"], new_order), **rows}
            self.set_incremental_state(incremental_state, "attention", saved)
