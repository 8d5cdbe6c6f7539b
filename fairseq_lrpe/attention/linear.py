"""Linear attention with a positional encoding."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.encodings import Encoding, check_choice
from fairseq_lrpe.methods import LINEAR_BACKENDS, LINEAR_NORMS
from fairseq_lrpe.ops import FEATURE_MAPS, linear_attention
from fairseq_lrpe.ops.linear_attention.state import LinearState

_LONG = 1024
"""Keys beyond which encoded q and k are not kept, but made again in the backward pass, if not causal."""


class LinearAttention(SelfAttention):
    """Computes :func:`fairseq_lrpe.ops.linear_attention` of ϕ(q), ϕ(k), encoded (LRPE TMLR Eqs. 3 and 13).

    The feature map comes before the encoding; there is no 1/√d and no attention dropout. While decoding
    the state is the running sums, whose size does not grow.

    Args:
        linear_norm: ``denominator`` divides by the encoded denominator; ``layernorm`` does not divide, and
            normalises all heads' outputs together by a LayerNorm(E); ``content`` divides by the
            denominator of the unencoded ϕ(q), ϕ(k), always positive (RoFormer Eq. 19).
        feature_map: a name in ``FEATURE_MAPS``.
        backend: of :func:`fairseq_lrpe.ops.linear_attention`; outside training ``fla`` is no more than
            ``auto``, so that what kernels trained is used without them too.
    """

    def __init__(
        self,
        encoding: Encoding,
        linear_norm: str = "denominator",
        feature_map: str = "elu",
        backend: str = "auto",
    ):
        super().__init__(encoding)
        if not encoding.decomposable:
            raise ValueError(f"{type(encoding).__name__} cannot be used in linear attention")
        check_choice("linear norm", linear_norm, LINEAR_NORMS)
        check_choice("feature map", feature_map, FEATURE_MAPS)
        check_choice("linear backend", backend, LINEAR_BACKENDS)
        self.linear_norm = linear_norm
        self.feature_map = FEATURE_MAPS[feature_map]
        self.backend = backend
        width = self.num_heads * self.head_dim
        self.norm = _InputDtypeLayerNorm(width) if linear_norm == "layernorm" else None
        # What attends is made again as well, which is little where it is not causal.
        self._encodes_again = not encoding.causal and type(encoding).forward is not Encoding.forward

    def attend(self, q, k, v, key_padding_mask, past, q_offset, k_offset, keep_state, steps):
        q, k = self.feature_map(q), self.feature_map(k)
        backend = "auto" if self.backend == "fla" and not self.training else self.backend

        def attend(q, k, v, normalize, state):
            given = {"log_decay": self.encoding.log_decay, "key_padding_mask": key_padding_mask}
            given |= {"normalize": normalize, "state": state, "return_state": keep_state, "backend": backend}
            found = linear_attention(q, k, v, causal=self.causal, **given)
            return found if keep_state else (found, None)

        def encode_and_attend(q, k, v):
            encoded = *self.encoding(q, k, q_offset, k_offset), self.encoding.encode_values(v, k_offset)
            o, sums = attend(*encoded, self.linear_norm == "denominator", past["sums"])
            o = self.encoding.decode_output(o, q_offset)
            return o if self.norm is None else self._normalized(o), sums

        past, content = past or {"sums": None, "content": None}, None
        if self._encodes_again and k.size(2) > _LONG and k.requires_grad:
            o, sums = checkpoint(encode_and_attend, q, k, v, use_reentrant=False)
        else:
            o, sums = encode_and_attend(q, k, v)
        if self.linear_norm == "content":
            # The sum of the weights is what the same attention makes of values that are all one.
            ones = v.new_ones(*v.shape[:-1], 1)
            denominator, content = attend(q, k, ones, False, past["content"])
            o = o / denominator.clamp(min=1e-6)
        if self.norm is None and v.dtype == torch.float16:
            o = _held(o)
        return o, {"sums": sums, "content": content}

    @torch.no_grad()
    def moved(self, past: dict, steps: int) -> dict:
        kv, k_sum = past["sums"]
        kv = self.encoding.earlier_values(self.encoding.earlier(kv.mT, steps).mT, steps)
        k_sum = self.encoding.earlier(k_sum[..., None, :], steps).squeeze(-2)
        return {**past, "sums": LinearState(kv, k_sum)}

    def _normalized(self, o):
        return self.norm(self.merge(o)).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)


HIGHEST = 2.0**10
"""What no feature exceeds in float16, which ends at 2^16: room for the sums of the output projection."""


def _held(o):
    # Where a rotated denominator is near zero, an output leaves float16. All heads of such a token are
    # scaled together: the direction is all that the layer norm behind attention takes of one so large.
    largest = o.detach().abs().amax((1, 3), keepdim=True)
    return o * (HIGHEST / largest.clamp(min=HIGHEST))


class _InputDtypeLayerNorm(nn.LayerNorm):
    # The undivided sums outgrow float16: they come in float32 and are normalised there.
    def forward(self, x):
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
