"""Linear attention with a positional encoding."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.attention.base import STATE_REMEDY, AttentionState, SelfAttention, complete_state
from fairseq_lrpe.attention.rows import append_rows, select_rows
from fairseq_lrpe.encodings import Context, Encoding, check_choice
from fairseq_lrpe.methods import LINEAR_BACKENDS, LINEAR_NORMS, check_linear_options
from fairseq_lrpe.ops import FEATURE_MAPS, linear_attention
from fairseq_lrpe.ops.autograd import recompute
from fairseq_lrpe.ops.decay import decay_of_keys
from fairseq_lrpe.ops.linear_attention.chunk import attend_last
from fairseq_lrpe.ops.linear_attention.exponential import exp_features, scaled_attention
from fairseq_lrpe.ops.linear_attention.state import LinearState
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.precision import no_autocast

_MIN_CHECKPOINT_KEYS = 1024
"""Number of keys above which bidirectional attention recomputes encoded q and k in the backward pass."""

_EPS = 1e-6
"""Lower bound of denominators."""

MAX_FLOAT16_OUTPUT = 2.0**10
"""Largest output of a float16 model, far below 2^16 so that the output projection's sums do not overflow."""

_MAX_KEY_STATE_SIZE = 2.0
"""Maximum size of a :class:`KeyState`, relative to that of the sums.

A step of beam search reads and writes keys and values once, and the sums twice.
"""


class KeyState(NamedTuple):
    """Keys and values of all previous positions, stored instead of their sums while :attr:`is_small` is true.

    A decoding step is then about as fast as in softmax attention. The sums have as many elements as the keys
    and values of d·dv / (d + dv) positions.

    Attributes:
        k: encoded keys (B, H, n, d), 0 at padding.
        v: encoded values (B, H, n, dv).
        log_decay: decay of each key (B, H, n, 1 or d), 0 at padding; None if there is none or it is constant.
    """

    k: Tensor
    v: Tensor
    log_decay: Tensor | None

    @property
    def is_small(self) -> bool:
        length, d, dv = *self.k.shape[2:], self.v.size(3)
        return length * (d + dv) <= _MAX_KEY_STATE_SIZE * d * dv


class LinearAttention(SelfAttention):
    """Linear self-attention with a positional encoding (LRPE TMLR Eqs. 3 and 13).

    Queries and keys are mapped by the feature map ϕ and then encoded. They are not scaled by 1/√d, and there
    is no attention dropout. The state for decoding consists of running sums, whose size is constant. If
    all positions are decoded one at a time, it consists of keys and values as long as they have at most twice
    as many elements as the sums, except for the feature map "exp".

    Args:
        embed_dim: embedding dimension E.
        num_heads: number of heads.
        encoding: the positional encoding or its name; its class must be ``decomposable``.
        causal: whether attention is causal; required if ``encoding`` is a name.
        linear_norm: "denominator" divides outputs by the sum of the weights; "content" divides by the sum of
            the weights of q and k that are not encoded, with the encoding's decay if it has one, which is
            never negative (RoFormer Eq. 19); "layernorm" does not divide, but applies a LayerNorm(E) to the
            concatenated heads.
        feature_map: a name in ``FEATURE_MAPS``. For "exp", maxima that cancel in the division are subtracted,
            so that inputs of any size give finite outputs; causal attention then takes O(L log L) time. If
            the encoding changes q and k, denominators are at least 1e-6 and 1e-12·exp(max q + max k), and
            outputs are too small where this lower bound applies.
        backend: backend of :func:`fairseq_lrpe.ops.linear_attention`; not used for the feature map "exp". In
            evaluation mode, "fla" and "triton" are replaced by "auto", so that models trained with the GPU
            kernels can be used without them.
        **options: see :class:`SelfAttention`.

    Raises:
        ValueError: if the encoding is not decomposable, for an unknown norm, feature map or backend, for the
            feature map "exp" with "layernorm", and as :class:`SelfAttention` does.
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
        check_linear_options(linear_norm, feature_map)
        self.linear_norm, self._is_exp = linear_norm, feature_map == "exp"
        self.feature_map = FEATURE_MAPS[feature_map]
        self.backend = backend
        self.norm = _InputDtypeLayerNorm(embed_dim) if linear_norm == "layernorm" else None
        # Recomputing the encoding includes recomputing attention, which is cheap only if it is not causal.
        self._recompute_encoding = not encoding.causal and type(encoding).forward is not Encoding.forward

    def attend(self, q, k, v, context, past, return_state):
        if past is not None and "sums" not in past:
            raise ValueError(f"the state is not one of linear attention: {STATE_REMEDY}")
        if self._is_exp:
            with no_autocast(q.device):
                return self._attend_exp(q, k, v, context, past)
        q, k = self.feature_map(q), self.feature_map(k)
        padding, options = context.key_padding_mask, {"causal": self.causal}
        uses_kernels = self.backend in ("fla", "triton")
        options["backend"] = "auto" if uses_kernels and not self.training else self.backend
        past = past or {"sums": None, "content": None, "order": None}
        state, order, content = past["sums"], past["order"], None
        first = state is None and return_state and self.causal and k.size(2) == 1

        # Decays are computed after the encoding's forward pass, in which FSDP gathers its parameters.
        def attend_with_sums(q, k, v, normalize, state):
            state = None if state is None else LinearState(*(select_rows(x, order) for x in state))
            own = {"log_decay": self.log_decay(context, q), "key_padding_mask": padding, "state": state}
            result = linear_attention(
                q, k, v, normalize=normalize, return_state=return_state, **own, **options
            )
            return result if return_state else (result, None)

        def attend_with_keys(q, k, v, normalize):
            log_decay = self.log_decay(context, q)
            keys = _append_keys(state, order, k, v, log_decay, padding)
            decay = log_decay if keys.log_decay is None else keys.log_decay
            if keys.is_small and q.size(2) == 1:
                with no_autocast(q.device):
                    return attend_last(q, keys.k, keys.v, decay, normalize, _EPS), keys
            own = {"log_decay": decay, "return_state": True}
            return linear_attention(q, keys.k, keys.v, normalize=normalize, **own, **options)

        def encode_and_attend(q, k, v):
            encoded = *self.encoding(q, k, context), self.encoding.encode_values(v, context)
            normalize = self.linear_norm == "denominator"
            if first or isinstance(state, KeyState):
                o, sums = attend_with_keys(*encoded, normalize)
            else:
                o, sums = attend_with_sums(*encoded, normalize, state)
            o = self.encoding.decode_output(o, context)
            return o if self.norm is None else self._normalize(o), sums

        if self._recompute_encoding and k.size(2) > _MIN_CHECKPOINT_KEYS and k.requires_grad:
            o, sums = recompute(encode_and_attend, q, k, v)
        else:
            o, sums = encode_and_attend(q, k, v)
        if self.linear_norm == "content":
            # The sum of the weights is the output of attention if all values are 1.
            ones = v.new_ones(*v.shape[:-1], 1)
            denominator, content = attend_with_sums(q, k, ones, False, past["content"])
            o = o / denominator.clamp(min=_EPS)
        if self.norm is None and v.dtype == torch.float16:
            o = _limit_magnitude(o)
        return o, {"sums": sums, "content": content, "order": None}

    def _attend_exp(self, q, k, v, context, past):
        """Computes :meth:`attend` with the feature map exp, for inputs of any size."""
        encoding = self.encoding
        past = past or dict.fromkeys(("sums", "content", "maximum", "order"))
        order = past["order"]
        unchanged = type(encoding).forward is Encoding.forward
        options = {"causal": self.causal, "log_decay": self.log_decay(context, q)}
        options["key_padding_mask"] = context.key_padding_mask
        maximum = select_rows(past["maximum"], order)
        if maximum is not None and maximum.shape[:2] != q.shape[:2]:
            found, expected = tuple(maximum.shape[:2]), tuple(q.shape[:2])
            raise ValueError(f"the state has (batch, heads) {found}, not {expected}: {STATE_REMEDY}")
        f = exp_features(q, k, per_feature=unchanged, maximum=maximum, **options)
        half, v = v.dtype == torch.float16, encoding.encode_values(v, context).to(f.q.dtype)
        ones = v.new_ones(*v.shape[:-1], 1)
        sums = past["sums"]
        sums = None if sums is None else torch.cat([sums.kv, sums.k_sum[..., None]], -1)
        sums, content = select_rows(sums, order), select_rows(past["content"], order)
        encoded, values = encoding(f.q, f.k, context), torch.cat([v, ones], dim=-1)
        o, sums = scaled_attention(*encoded, values, f.levels, self.causal, sums)
        o, denominator = o.split([v.size(-1), 1], dim=-1)
        if self.linear_norm == "content":
            denominator, content = scaled_attention(f.q, f.k, ones, f.levels, self.causal, content)
        # The denominator of exp without maxima is e^log_scale times larger. Its lower bound is the same,
        # except where outputs would overflow. Without an encoding, the denominator is at least 1.
        bound = _EPS if unchanged else (_EPS * (-f.log_scale).exp()).clamp(min=_EPS**2)
        o = o / denominator.clamp(min=bound)
        o = encoding.decode_output(o, context)
        o = _limit_magnitude(o) if half else o
        sums = LinearState(sums[..., :-1], sums[..., -1])
        return o, {"sums": sums, "content": content, "maximum": f.maximum, "order": None}

    def log_decay(self, context: Context, q: Tensor) -> Tensor | None:
        """Returns the log decay. For a :class:`PositionIndex`, a constant one becomes one of each key."""
        decay, index = self.encoding.log_decay(context), context.q_offset
        if decay is None or decay.dim() > 2 or not isinstance(index, PositionIndex):
            return decay
        decay = decay_of_keys(decay, index.key_positions, context.key_padding_mask)
        return decay.expand(*q.shape[:2], *decay.shape[2:])

    @torch.no_grad()
    def restart_positions(self, state: AttentionState) -> AttentionState:
        shift, sums = state.length, state.past["sums"]
        if isinstance(sums, KeyState):
            k, v, decay = sums
            decay = self.encoding.log_decay() if decay is None else decay
            options = {"causal": self.causal, "normalize": False, "log_decay": decay, "return_state": True}
            _, sums = linear_attention(k[:, :, :0], k, v, **options)
        kv, k_sum = sums
        kv = self.encoding.shift_values(self.encoding.shift_keys(kv.mT, shift).mT, shift)
        k_sum = self.encoding.shift_keys(k_sum[..., None, :], shift).squeeze(-2)
        return complete_state(AttentionState({**state.past, "sums": LinearState(kv, k_sum)}))

    def _normalize(self, o):
        return self.split_heads(self.norm(self.merge_heads(o)))


def _append_keys(state, order, k, v, log_decay, key_padding_mask):
    """Returns the ``KeyState`` after the rows ``order`` of ``state`` and new positions."""
    if log_decay is not None and log_decay.dim() < 4:
        log_decay = log_decay[..., None] if log_decay.dim() == 3 else None
    if key_padding_mask is not None:
        hidden = key_padding_mask[:, None, :, None]
        k = k.masked_fill(hidden, 0.0)
        log_decay = log_decay if log_decay is None else log_decay.masked_fill(hidden, 0.0)
    new = KeyState(k, v, log_decay)
    if state is None:
        return new
    found, expected = (len(state.k if order is None else order), state.k.size(1)), tuple(k.shape[:2])
    if found != expected:
        raise ValueError(f"the state has (batch, heads) {found}, not {expected}: {STATE_REMEDY}")
    return KeyState(*(x if x is None else append_rows(x, order, y) for x, y in zip(state, new, strict=True)))


def _limit_magnitude(o):
    # Outputs whose denominator is near zero can exceed float16's range. All heads of such a token are scaled
    # by one factor, because the layer norm after attention removes the scale of outputs that are this large.
    largest = o.detach().abs().amax((1, 3), keepdim=True)
    return o * (MAX_FLOAT16_OUTPUT / largest.clamp(min=MAX_FLOAT16_OUTPUT))


class _InputDtypeLayerNorm(nn.LayerNorm):
    """LayerNorm in the dtype of its input, which is float32 even in float16 models."""

    def forward(self, x):
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
