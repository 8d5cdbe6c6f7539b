"""Linear attention with a positional encoding."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from fairseq_lrpe.attention.base import STATE_REMEDY, AttentionState, SelfAttention
from fairseq_lrpe.encodings import Encoding, check_choice
from fairseq_lrpe.methods import LINEAR_BACKENDS, LINEAR_NORMS, check_linear_options
from fairseq_lrpe.ops import FEATURE_MAPS, linear_attention
from fairseq_lrpe.ops.decay import decay_of_keys
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


class LinearAttention(SelfAttention):
    """Linear self-attention with a positional encoding (LRPE TMLR Eqs. 3 and 13).

    Queries and keys are mapped by the feature map ϕ and then encoded. They are not scaled by 1/√d, and there
    is no attention dropout. The state for decoding consists of running sums and has a constant size.

    Args:
        embed_dim: embedding dimension E.
        num_heads: number of heads.
        encoding: the positional encoding or its name; its class must be ``decomposable``.
        causal: whether attention is causal; required if ``encoding`` is a name.
        linear_norm: "denominator" divides outputs by the sum of the weights; "content" divides by the sum of
            the weights without the encoding, which is always positive (RoFormer Eq. 19); "layernorm" does not
            divide, but applies a LayerNorm(E) to the concatenated heads.
        feature_map: a name in ``FEATURE_MAPS``. For "exp", maxima that cancel in the division are subtracted,
            so that inputs of any size give finite outputs; causal attention then takes O(L log L) time. If
            the encoding changes q and k, denominators are at least 1e-6 and 1e-12·exp(max q + max k), and
            outputs are too small where this lower bound applies.
        backend: backend of :func:`fairseq_lrpe.ops.linear_attention`. In evaluation mode, "fla" is replaced
            by "auto", so that models trained with the GPU kernels can be used without them.
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
        backend = "auto" if self.backend == "fla" and not self.training else self.backend

        def run_backend(q, k, v, normalize, state):
            options = {"log_decay": self._log_decay(context, q), "normalize": normalize, "state": state}
            options |= {"key_padding_mask": context.key_padding_mask, "return_state": return_state}
            result = linear_attention(q, k, v, causal=self.causal, backend=backend, **options)
            return result if return_state else (result, None)

        def encode_and_attend(q, k, v):
            encoded = *self.encoding(q, k, context), self.encoding.encode_values(v, context)
            o, sums = run_backend(*encoded, self.linear_norm == "denominator", past["sums"])
            o = self.encoding.decode_output(o, context)
            return o if self.norm is None else self._normalize(o), sums

        past, content = past or {"sums": None, "content": None}, None
        if self._recompute_encoding and k.size(2) > _MIN_CHECKPOINT_KEYS and k.requires_grad:
            o, sums = checkpoint(encode_and_attend, q, k, v, use_reentrant=False)
        else:
            o, sums = encode_and_attend(q, k, v)
        if self.linear_norm == "content":
            # The sum of the weights is the output of attention if all values are 1.
            ones = v.new_ones(*v.shape[:-1], 1)
            denominator, content = run_backend(q, k, ones, False, past["content"])
            o = o / denominator.clamp(min=_EPS)
        if self.norm is None and v.dtype == torch.float16:
            o = _limit_magnitude(o)
        return o, {"sums": sums, "content": content}

    def _attend_exp(self, q, k, v, context, past):
        """Computes :meth:`attend` with the feature map exp, for inputs of any size."""
        encoding = self.encoding
        past = past or {"sums": None, "content": None, "maximum": None}
        unchanged = type(encoding).forward is Encoding.forward
        options = {"causal": self.causal, "log_decay": self._log_decay(context, q)}
        options["key_padding_mask"] = context.key_padding_mask
        f = exp_features(q, k, per_feature=unchanged, maximum=past["maximum"], **options)
        half, v = v.dtype == torch.float16, encoding.encode_values(v, context).to(f.q.dtype)
        ones = v.new_ones(*v.shape[:-1], 1)
        sums = (
            None if past["sums"] is None else torch.cat([past["sums"].kv, past["sums"].k_sum[..., None]], -1)
        )
        encoded, values = encoding(f.q, f.k, context), torch.cat([v, ones], dim=-1)
        o, sums = scaled_attention(*encoded, values, f.levels, self.causal, sums)
        (o, denominator), content = o.split([v.size(-1), 1], dim=-1), None
        if self.linear_norm == "content":
            denominator, content = scaled_attention(f.q, f.k, ones, f.levels, self.causal, past["content"])
        # The denominator of exp without maxima is e^log_scale times larger. Its lower bound is the same,
        # except where outputs would overflow. Without an encoding, the denominator is at least 1.
        bound = _EPS if unchanged else (_EPS * (-f.log_scale).exp()).clamp(min=_EPS**2)
        o = o / denominator.clamp(min=bound)
        o = encoding.decode_output(o, context)
        o = _limit_magnitude(o) if half else o
        sums = LinearState(sums[..., :-1], sums[..., -1])
        return o, {"sums": sums, "content": content, "maximum": f.maximum}

    def _log_decay(self, context, q):
        """Returns the log decay. For a :class:`PositionIndex`, a constant one becomes one of each key."""
        decay, index = self.encoding.log_decay(context), context.q_offset
        if decay is None or decay.dim() > 2 or not isinstance(index, PositionIndex):
            return decay
        decay = decay_of_keys(decay, index.key_positions, context.key_padding_mask)
        return decay.expand(*q.shape[:2], *decay.shape[2:])

    @torch.no_grad()
    def restart_positions(self, state: AttentionState) -> AttentionState:
        shift, (kv, k_sum) = state.length, state.past["sums"]
        kv = self.encoding.shift_values(self.encoding.shift_keys(kv.mT, shift).mT, shift)
        k_sum = self.encoding.shift_keys(k_sum[..., None, :], shift).squeeze(-2)
        return AttentionState({**state.past, "sums": LinearState(kv, k_sum)})

    def _normalize(self, o):
        return self.split_heads(self.norm(self.merge_heads(o)))


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
