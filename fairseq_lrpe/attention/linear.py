"""Linear attention with a positional encoding."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.attention.base import AttentionState, SelfAttention
from fairseq_lrpe.attention.key_state import KeyState, append_keys
from fairseq_lrpe.attention.rows import select_rows
from fairseq_lrpe.attention.state import STATE_REMEDY, complete_state
from fairseq_lrpe.encodings import Context, Encoding
from fairseq_lrpe.encodings.base import overrides
from fairseq_lrpe.encodings.transformations import decode_output, encode_values, shift_keys, shift_values
from fairseq_lrpe.ops import FEATURE_MAPS, linear_attention
from fairseq_lrpe.ops.autograd import recompute
from fairseq_lrpe.ops.decay import decay_of_keys, is_constant, prepared_log_decay
from fairseq_lrpe.ops.feature_maps import check_divisor
from fairseq_lrpe.ops.linear.chunk import attend_last
from fairseq_lrpe.ops.linear.functional import LINEAR_BACKENDS
from fairseq_lrpe.ops.linear.state import LinearState
from fairseq_lrpe.ops.position_index import is_consecutive
from fairseq_lrpe.ops.precision import no_autocast, sum_dtype
from fairseq_lrpe.utils.suggest import check_choice

LINEAR_RULES = ("additive", "delta", "gated_delta", "kda")
"""How linear attention updates its state; the module of those after the first is ``DeltaAttention``."""
LINEAR_NORMS = ("denominator", "layernorm", "content", "rmsnorm")
"""Normalizations of linear attention, which :class:`LinearAttention` explains."""

_MIN_CHECKPOINT_KEYS = 1024
"""Number of keys above which bidirectional attention recomputes encoded q and k in the backward pass."""

_EPS = 1e-6
"""Lower bound of denominators."""

RMS_EPS = 1e-5
"""ε of the RMSNorm of each head, as in flash-linear-attention's layers."""

MAX_FLOAT16_OUTPUT = 2.0**10
"""Largest output of a float16 model, far below 2^16 so that the output projection's sums do not overflow."""


class _Call(NamedTuple):
    """Arguments of a call of linear attention besides the queries, keys and values.

    Attributes:
        context: positions and padding.
        order: the row of the previous state for each row of the batch, or None for the same rows.
        starts_with_one_token: whether decoding starts with a call for a single token, after which keys and
            values are stored instead of their sums.
        return_state: whether the caller uses the new state.
    """

    context: Context
    order: Tensor | None
    starts_with_one_token: bool
    return_state: bool


class LinearAttention(SelfAttention):
    """Linear self-attention with a positional encoding (LRPE TMLR Eqs. 3 and 13).

    Queries and keys are mapped by the feature map ϕ and then encoded. There is no attention dropout. The
    state for decoding consists of running sums, whose size is constant. If all positions are decoded one at a
    time, it consists of keys and values as long as they have at most twice as many elements as the sums.

    Args:
        embed_dim: embedding dimension E.
        num_heads: number of heads.
        encoding: the positional encoding or its name; its class must be ``decomposable``.
        causal: whether attention is causal; required if ``encoding`` is a name.
        linear_norm: "denominator" divides outputs by the sum of the weights; "content" divides by the sum of
            the weights of q and k that are not encoded, with the encoding's decay if it has one, which is
            never negative (RoFormer Eq. 19); "layernorm" does not divide, but applies a LayerNorm(E) to the
            concatenated heads; "rmsnorm" applies an RMSNorm(E / H) to each head instead, whose weight the
            heads share, as in GLA, DeltaNet and their successors.
        feature_map: a name in ``FEATURE_MAPS``. Those with negative values need "layernorm" or "rmsnorm".
        scale_queries: whether to divide ϕ(q) by √d, as GLA and DeltaNet do. After a division or a norm, it
            makes a difference only through their ε.
        backend: backend of :func:`fairseq_lrpe.ops.linear_attention`. In evaluation mode, "fla" and "triton"
            are replaced by "auto", so that models trained with the GPU kernels can be used without them.
        **options: see :class:`SelfAttention`.

    Raises:
        ValueError: if the encoding is not decomposable, for an unknown norm, feature map or backend, for a
            feature map with negative values and a denominator, and as :class:`SelfAttention` does.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        encoding: str | Encoding,
        *,
        causal: bool | None = None,
        linear_norm: str = "denominator",
        feature_map: str = "elu",
        scale_queries: bool = False,
        backend: str = "auto",
        **options,
    ):
        super().__init__(embed_dim, num_heads, encoding, causal=causal, **options)
        encoding = self.encoding
        if not encoding.decomposable:
            raise ValueError(
                f"encoding {encoding.name!r} needs the score matrix, which linear attention does not compute"
                ": use SoftmaxAttention"
            )
        check_choice("linear norm", linear_norm, LINEAR_NORMS)
        check_choice("feature map", feature_map, FEATURE_MAPS)
        check_choice("linear backend", backend, LINEAR_BACKENDS)
        check_divisor(feature_map, linear_norm)
        self.linear_norm = linear_norm
        self.feature_map = FEATURE_MAPS[feature_map]
        self.scale_queries = scale_queries
        self.backend = backend
        self.norm: nn.Module | None = None
        if linear_norm == "layernorm":
            self.norm = _InputDtypeLayerNorm(embed_dim)
        elif linear_norm == "rmsnorm":
            self.norm = InputDtypeRMSNorm(self.head_dim, eps=RMS_EPS)
        # Recomputing the encoding includes recomputing attention, which is cheap only if it is not causal.
        self._recompute_encoding = not encoding.causal and overrides(encoding, "forward")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, past: dict | None, return_state: bool
    ) -> tuple[Tensor, dict]:
        if past is None:
            past = {"sums": None, "content": None, "order": None}
        elif "sums" not in past:
            raise ValueError(f"the state is not one of linear attention: {STATE_REMEDY}")
        # Keys and values are stored instead of their sums if decoding starts without a prompt.
        starts_with_one_token = past["sums"] is None and return_state and self.causal and k.size(2) == 1
        call = _Call(context, past["order"], starts_with_one_token, return_state)
        q = self.feature_map(q)
        k = self.feature_map(k)
        if self.scale_queries:
            q = q * self.head_dim**-0.5

        encode_and_attend = self._encode_and_attend
        if self._recompute_encoding and k.size(2) > _MIN_CHECKPOINT_KEYS and k.requires_grad:
            encode_and_attend = partial(recompute, encode_and_attend)
        o, sums = encode_and_attend(q, k, v, call, past["sums"])
        content = None
        if self.linear_norm == "content":
            # The sum of the weights is the output of attention if all values are 1.
            ones = v.new_ones(*v.shape[:-1], 1)
            denominator, content = self._attend_with_sums(q, k, ones, False, call, past["content"])
            o = o / denominator.clamp(min=_EPS)
        if self.norm is None and v.dtype == torch.float16:
            o = _limit_magnitude(o)
        return o, {"sums": sums, "content": content, "order": None}

    def _encode_and_attend(self, q, k, v, call, state):
        """Encodes q, k and v, and returns the output and the new sums, or keys and values instead of them."""
        q, k = self.encoding(q, k, call.context)
        v = encode_values(self.encoding, v, call.context)
        keeps_keys = call.starts_with_one_token or isinstance(state, KeyState)
        attend = self._attend_with_keys if keeps_keys else self._attend_with_sums
        o, state = attend(q, k, v, self.linear_norm == "denominator", call, state)
        o = decode_output(self.encoding, o, call.context)
        if self.norm is not None and self.linear_norm == "layernorm":
            o = self.split_heads(self.norm(self.merge_heads(o)))
        elif self.norm is not None:
            o = self.norm(o)
        return o, state

    def _attend_with_sums(self, q, k, v, normalize, call, state):
        """Returns the output and the new state if ``state`` has sums over all earlier keys, or is None."""
        if state is not None:
            kv, k_sum = state
            state = LinearState(select_rows(kv, call.order), select_rows(k_sum, call.order))
        # The decay follows the encoding's forward pass, in which FSDP gathers its parameters.
        log_decay = self.log_decay(call.context, q)
        result = linear_attention(
            q,
            k,
            v,
            causal=self.causal,
            normalize=normalize,
            log_decay=log_decay,
            key_padding_mask=call.context.key_padding_mask,
            state=state,
            return_state=call.return_state,
            backend=self._backend(),
        )
        return result if call.return_state else (result, None)

    def _attend_with_keys(self, q, k, v, normalize, call, state):
        """Returns the output and the new state if ``state`` has all earlier keys, or is None."""
        log_decay = self.log_decay(call.context, q)
        keys = append_keys(state, call.order, k, v, log_decay, call.context.key_padding_mask)
        if keys.log_decay is not None:
            log_decay = keys.log_decay
        if keys.is_small and q.size(2) == 1:
            dtype = sum_dtype(q.dtype, keys.k.dtype, keys.v.dtype)
            log_decay = prepared_log_decay(log_decay, q.device, dtype)
            with no_autocast(q.device):
                return attend_last(q, keys.k, keys.v, log_decay, normalize, _EPS), keys
        return linear_attention(
            q,
            keys.k,
            keys.v,
            causal=True,
            normalize=normalize,
            log_decay=log_decay,
            return_state=True,
            backend=self._backend(),
        )

    def _backend(self):
        needs_gpu = self.backend in ("fla", "triton")
        return "auto" if needs_gpu and not self.training else self.backend

    def log_decay(self, context: Context, q: Tensor) -> Tensor | None:
        """Returns the log decay; with a ``PositionIndex``, a constant log decay becomes one of each key."""
        decay = self.encoding.log_decay(context)
        index = context.q_offset
        if decay is None or not is_constant(decay) or is_consecutive(index):
            return decay
        decay = decay_of_keys(decay, index.key_positions, context.key_padding_mask)
        return decay.expand(*q.shape[:2], *decay.shape[2:])

    @torch.no_grad()
    def restart_positions(self, state: AttentionState) -> AttentionState:
        assert state.past is not None  # a module returned this state
        sums = state.past["sums"]
        if isinstance(sums, KeyState):
            k, v, decay = sums
            _, sums = linear_attention(
                k[:, :, :0],
                k,
                v,
                causal=True,
                normalize=False,
                log_decay=self.encoding.log_decay() if decay is None else decay,
                return_state=True,
            )
        # The rows of Σ k vᵀ are shifted like keys, and its columns like values.
        kv, k_sum = sums
        kv = shift_keys(self.encoding, kv.mT, state.length).mT
        kv = shift_values(self.encoding, kv, state.length)
        k_sum = shift_keys(self.encoding, k_sum[..., None, :], state.length).squeeze(-2)
        return complete_state(AttentionState({**state.past, "sums": LinearState(kv, k_sum)}))


def _limit_magnitude(o):
    # Outputs whose denominator is near zero can exceed float16's range. All heads of such a token are scaled
    # by one factor, because the layer norm after attention removes the scale of outputs that are this large.
    largest = o.detach().abs().amax((1, 3), keepdim=True)
    return o * (MAX_FLOAT16_OUTPUT / largest.clamp(min=MAX_FLOAT16_OUTPUT))


class _InputDtypeLayerNorm(nn.LayerNorm):
    """LayerNorm in the dtype of its input, which is float32 even in float16 models."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        bias = self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class InputDtypeRMSNorm(nn.RMSNorm):
    """RMSNorm in the dtype of its input, which is float32 even in float16 models."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
