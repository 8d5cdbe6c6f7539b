"""Base class of linear and softmax self-attention: projections, heads and the state for decoding."""

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.attention.inputs import input_features, inputs_with_context
from fairseq_lrpe.attention.rows import reordered_rows
from fairseq_lrpe.attention.state import check_state, complete_state, own_storage
from fairseq_lrpe.attention.validation import check_documents, check_encoding, check_inputs, check_mask
from fairseq_lrpe.encodings import Context, Encoding, InputsMixin, build_encoding
from fairseq_lrpe.encodings.base import check_positions, overrides
from fairseq_lrpe.ops.autograd import with_zero_gradient
from fairseq_lrpe.ops.documents import Documents, by_document
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.position_index import PositionIndex, check_token_positions, integer_positions
from fairseq_lrpe.ops.precision import at_least_float32


class AttentionState(NamedTuple):
    """State of incremental decoding, which represents all previous positions.

    Attributes:
        past: cached keys and values in softmax attention; in linear attention, sums, or keys and values while
            these are few; and the ``order`` in which the next call reads their rows. None at the start.
        length: number of previous positions.
        inputs: last inputs (B, left_context, E), or None if neither the module nor the encoding needs them.
        feature_sum: sum (B, H, 1, F) of the ``input_features`` of all previous positions, or None if the
            encoding has none.
    """

    past: dict | None = None
    length: int = 0
    inputs: Tensor | None = None
    feature_sum: Tensor | None = None


class SelfAttention(nn.Module):
    """Base class of self-attention modules; subclasses implement :meth:`attend`.

    Args:
        embed_dim: embedding dimension E.
        num_heads: number of heads H; the head dimension is E / H.
        encoding: name of the positional encoding, or the encoding itself.
        causal: whether attention is causal; required if ``encoding`` is a name.
        **options: the encoding's options, and the other arguments of :class:`Encoding`, such as
            ``max_positions``; only accepted if ``encoding`` is a name.

    Raises:
        ValueError: if E is not a multiple of H, for an unknown encoding or invalid options, or if an
            encoding's heads, head dimension or ``causal`` differ from the arguments.
    """

    left_context: int | None = None
    """Number of inputs before the first key that the module or its encoding needs, or None for no inputs."""

    time_dim = 1
    """Index of the sequence dimension of the inputs and outputs, which are (B, L, E) in this class."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        encoding: str | Encoding,
        *,
        causal: bool | None = None,
        **options,
    ):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads >= 1, not {embed_dim} with {num_heads} heads"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        if isinstance(encoding, str):
            if causal is None:
                raise ValueError("causal is missing: pass causal=True or causal=False")
            shape = {"num_heads": num_heads, "head_dim": self.head_dim}
            encoding = build_encoding(encoding, **shape, causal=causal, **options)
        else:
            check_encoding(encoding, num_heads, self.head_dim, causal, options)
        self.encoding = encoding
        self.causal = encoding.causal
        if isinstance(encoding, InputsMixin):
            self.left_context = encoding.left_context
        projections = [nn.Linear(embed_dim, embed_dim) for _ in range(4)]
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = projections
        # The initialization is that of fairseq's attention, so that models differ in their encoding only.
        for projection in projections[:3]:
            nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def project(self, x: Tensor, parts: list[Tensor], inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Computes queries (B, H, Lq, d), and keys and values (B, H, Lk, d), which :meth:`attend` gets.

        Args:
            x: inputs (B, Lq, E) of queries.
            parts: list of inputs of keys, of which the last one has those at the positions of x.
            inputs: the inputs of keys after ``left_context`` earlier ones (B, left_context + Lk, E), which
                are 0 at padding and before the start, or None if there is no ``left_context``.
        """
        q = self.split_heads(self.q_proj(x))
        return q, self._project(self.k_proj, parts), self._project(self.v_proj, parts)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, past: dict | None, return_state: bool
    ) -> tuple[Tensor, dict]:
        """Computes the outputs of all heads.

        Args:
            q: queries (B, H, Lq, d).
            k: keys (B, H, Lk, d). q, k and v are not encoded yet.
            v: values (B, H, Lk, d).
            context: the context of the encoding for these queries and keys. Its ``k_offset`` is the number of
                positions in ``past``, unless :meth:`restart_positions` has reset it to 0.
            past: the ``past`` that the previous call returned, or None.
            return_state: whether the caller uses the returned ``past``.

        Returns:
            The outputs (B, H, Lq, d), and a dict that is the ``past`` of the next call.
        """
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        *,
        keys: Tensor | None = None,
        memory: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        state: AttentionState | None = None,
        return_state: bool = False,
        position_index: PositionIndex | None = None,
        document_ids: Tensor | Documents | None = None,
    ) -> Tensor | tuple[Tensor, AttentionState]:
        """Computes self-attention.

        Args:
            x: inputs (B, L, E).
            keys: inputs (B, L, E) at the positions of x, from which keys and values are computed, by default
                x.
            memory: inputs (B, M, E) at the positions before x, to which the queries of x also attend.
            key_padding_mask: True at padding, (B, L), or (B, M + L) if the memory also contains padding.
                Padding has positions like tokens. After the last token of a row, it has no effect. Before
                the first one, it changes the output only if the encoding ``uses_absolute_positions`` or
                ``draws_noise``. Between tokens, it increases their distances, unless the encoding only
                accumulates values over tokens; this includes padding between a prompt and later calls with
                its state. Padding also counts in the length of dynamic scaling.
            state: the state that the previous call returned, whose positions precede those of this call.
            return_state: whether to return the state for the next call.
            position_index: positions of the tokens if they are not consecutive, or their coordinates for an
                encoding with several ``axes``, which requires this argument. The output is that of a sequence
                with these tokens at these positions and padding at all others. In causal attention, positions
                therefore must not descend, and encodings that accumulate values from token to token do not
                support other positions. ``position_index`` excludes ``memory``, ``state`` and
                ``return_state``.
            document_ids: numbers of the documents to which the tokens belong, integers (B, L) that do not
                descend along a row, or the result of :meth:`Documents.from_ids`, which several layers can
                share. The output is that of a separate call for each document, whose positions start at 0.
                In training, documents can share noise, as rows of a batch do. ``document_ids`` excludes
                ``memory``, ``state``, ``return_state``, ``position_index`` and dynamic scaling.

        Returns:
            The output (B, L, E), or a tuple of the output and the state if ``return_state``.

        Raises:
            ValueError: if an argument has another shape, ``key_padding_mask`` is not boolean, or the state is
                not one of this module for this batch size, for a ``position_index`` with ``memory``,
                ``state`` or ``return_state``, with an encoding that does not support it, or with positions
                that do not fit, for ``document_ids`` that descend, or with what they exclude, or for a state
                in training mode with an encoding that draws noise.
            TypeError: if ``position_index`` is not a ``PositionIndex`` of integers, or ``document_ids`` are
                not integers.
        """
        check_inputs(x, keys, self.embed_dim)
        if document_ids is not None:
            check_documents(self.encoding, memory, state, return_state, position_index)
            if key_padding_mask is not None:
                check_mask(key_padding_mask, x.size(0), (x.size(1),))
            packed = {"x": x, "keys": keys, "key_padding_mask": key_padding_mask}
            return by_document(
                partial(SelfAttention.forward, self), document_ids, causal=self.causal, **packed
            )
        if position_index is not None and (memory is not None or state is not None or return_state):
            raise ValueError("a memory or a state requires consecutive positions: omit position_index")
        if position_index is not None:
            check_positions(self.encoding, "position_index")
            length = x.size(self.time_dim)
            axes = self.encoding.axes
            position_index = check_token_positions(position_index, length, axes, ascending=self.causal)
        if state is not None:
            check_state(state)
        self._check_state(state, return_state)
        past, offset, inputs, feature_sum = state or AttentionState()
        keys = x if keys is None else keys
        parts = [keys] if memory is None else [memory, keys]
        if key_padding_mask is not None:
            lengths = x.size(self.time_dim), sum(part.size(self.time_dim) for part in parts)
            check_mask(key_padding_mask, x.size(1 - self.time_dim), lengths)
            key_padding_mask = F.pad(key_padding_mask, (lengths[1] - key_padding_mask.size(1), 0))
        if self.left_context is not None:
            rows = self._concat(parts).movedim(self.time_dim, 1)
            inputs = inputs_with_context(rows, key_padding_mask, inputs, self.left_context)
        features = input_features(self.encoding, inputs, key_padding_mask, self.left_context)
        q, k, v = self.project(x, parts, inputs)
        context = Context(
            q_offset=offset + k.size(2) - q.size(2) if position_index is None else position_index,
            k_offset=offset if position_index is None else position_index,
            key_padding_mask=key_padding_mask,
            features=features,
            feature_sum=feature_sum,
            device=q.device,
        )
        decays = self.causal and overrides(self.encoding, "log_decay")
        if self.encoding.float32_parameters and decays:
            # The gradient of an angle is the difference of a term of q and a term of k, both proportional to
            # absolute positions. With a decay, the difference is far smaller than the terms.
            q = at_least_float32(q)
            k = at_least_float32(k)
        o, past = self.attend(q, k, v, context, past, return_state)
        if features is not None and features.requires_grad and k.size(2) <= 1:
            # The decay of the first key is not used, but its parameters need a gradient.
            o = with_zero_gradient(o, features)
        if not x.size(0):
            # No score of an empty batch depends on the encoding's parameters, which need gradients, too.
            for parameter in self.encoding.parameters():
                o = with_zero_gradient(o, parameter)
        out = self.out_proj(self.merge_heads(o).to(x.dtype))
        if not return_state:
            return out
        if features is not None:
            total = to_float64(features).sum(2, keepdim=True)
            feature_sum = total if feature_sum is None else feature_sum + total
        if inputs is not None:
            assert self.left_context is not None
            inputs = inputs[:, inputs.size(1) - self.left_context :]
        new = AttentionState(past, offset + k.size(2), inputs, feature_sum)
        if state is None or q.size(2) > 1:  # a step keeps at most the inputs of a few tokens
            new = own_storage(new)
        return out, complete_state(new)

    def _project(self, projection, parts):
        """Returns the projected inputs (B, H, L, d), each part in a product of its own."""
        return self.split_heads(self._concat([projection(part) for part in parts]))

    def split_heads(self, x: Tensor) -> Tensor:
        """Splits the heads: (B, L, H·d) -> (B, H, L, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge_heads(self, o: Tensor) -> Tensor:
        """Concatenates the heads: (B, H, L, d) -> (B, L, H·d)."""
        return o.transpose(1, 2).flatten(2)

    def reorder_state(self, state: AttentionState, order: Tensor) -> AttentionState:
        """Returns the state whose batch row i is row ``order[i]`` of the given state.

        Keys and sums are copied only in the next call, which appends to them.

        Raises:
            TypeError: if ``order`` is not a tensor of integers.
        """
        order = integer_positions(order, "order")
        past, length, inputs, feature_sum = state
        assert past is not None  # a module returned this state
        inputs = reordered_rows(inputs, order)
        feature_sum = reordered_rows(feature_sum, order)
        # The rows of ``past`` are still in the order in which they were computed.
        of_past = order if past["order"] is None else reordered_rows(past["order"], order)
        return AttentionState({**past, "order": of_past}, length, inputs, feature_sum)

    def restart_positions(self, state: AttentionState) -> AttentionState:
        """Returns the state with all previous positions shifted, so that the next position is 0.

        Raises:
            ValueError: if the positions of the state cannot be shifted.
        """
        raise ValueError(
            "cannot restart positions, because the state is not of constant size: use LinearAttention"
        )

    def _check_state(self, state, return_state):
        """Raises a ValueError if this call would draw other noise than the calls that computed the state."""
        if self.training and self.encoding.draws_noise and (state is not None or return_state):
            raise ValueError(
                f"{self.encoding.name} draws new noise in each call in training mode, but a state needs the "
                "same noise: call eval(), or pass the whole sequence without a state"
            )

    def _concat(self, parts):
        return torch.cat(parts, dim=self.time_dim) if len(parts) > 1 else parts[0]
