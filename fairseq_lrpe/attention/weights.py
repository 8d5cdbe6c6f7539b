"""Attention weights by their definition, in O(L²) time, for plots."""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.delta import DeltaAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.encodings import START, Context, softmax_scores
from fairseq_lrpe.encodings.scores import log_weights
from fairseq_lrpe.ops import linear_attention


@torch.no_grad()
def attention_weights(
    attention: SelfAttention, q: Tensor, k: Tensor, context: Context = START, gates: Tensor | None = None
) -> Tensor:
    """Returns the weights (B, H, L, L) with which causal attention sums the values.

    Rows sum to 1, with these exceptions. If the encoding has ``log_weights``, rows sum to at most 1. In
    linear attention with the norms "denominator" and "content", the divisor is that of the module, at least
    1e-6. With "layernorm" and "rmsnorm", the module does not divide. The divisor is then the sum of the
    products of queries and keys without the encoding and its decay, since the sum with the encoding can be
    negative or close to 0. With a delta rule, whose weights can be negative, the divisor is the sum of their
    absolute values. Transformations of the values by the encoding are not part of the weights.

    For inputs x (B, L, E) of a module, ``q, k, _ = attention.project(x, [x], None)``. If the encoding depends
    on them, the context is ``Context(features=attention.encoding.input_features(x))``.

    Args:
        attention: linear (also with a delta rule) or softmax attention, in evaluation mode.
        q: queries (B, H, L, d), before the feature map and the encoding.
        k: keys (B, H, L, d), likewise.
        context: the positions, and the encoding's ``input_features`` if its scores depend on them.
        gates: with a delta rule, its gates (B, H, L, ·), by default those of inputs that are 0.

    Raises:
        ValueError: if attention is not causal, or if padding precedes the tokens.
    """
    encoding = attention.encoding
    if not attention.causal:
        raise ValueError("attention_weights are those of causal attention: pass a module with causal=True")
    if context.key_padding_mask is not None and context.key_padding_mask[:, :1].any():
        raise ValueError("attention_weights do not support padding before the tokens: omit it")
    values = torch.eye(q.size(-2), dtype=q.dtype, device=q.device).expand(*q.shape[:2], -1, -1)
    if isinstance(attention, DeltaAttention):
        if gates is None:
            gates = attention.gates(q.new_zeros(q.size(0), q.size(2), attention.embed_dim))
        signed, _ = attention.associate(q, k, values, gates, context)
        return signed / signed.abs().sum(-1, keepdim=True).clamp(min=1e-6)
    if isinstance(attention, LinearAttention):
        q = attention.feature_map(q)
        k = attention.feature_map(k)
        log_decay = attention.log_decay(context, q)
        options: Any = {"log_decay": log_decay, "normalize": False, "backend": "reference"}
        weights: Any = linear_attention(*encoding(q, k, context), values, causal=True, **options)
        sums: Any = weights if attention.linear_norm == "denominator" else (q @ k.mT).tril()
        if attention.linear_norm == "content":
            sums = linear_attention(q, k, values, causal=True, **options)
        return weights / sums.sum(-1, keepdim=True).clamp(min=1e-6)
    scores = softmax_scores(encoding, *encoding(q, k, context), context)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    window: Any = attention.window
    if window:
        hidden = hidden | torch.ones_like(hidden).tril(-window)
    scores = scores.masked_fill(hidden, float("-inf"))
    return scores.exp() if log_weights(encoding) else scores.softmax(-1)


def relative_weights(weights: Tensor) -> Tensor:
    """Returns the mean (L,) of the weights (..., L, L) at each distance, relative to uniform attention.

    A weight of query i is multiplied by the number i + 1 of its keys, so that uniform weights are 1. The mean
    is over all leading dimensions and the second half of the queries.
    """
    length = weights.size(-1)
    mean = weights.flatten(0, -3).mean(0) * torch.arange(1, length + 1)[:, None]
    return torch.stack([mean.diagonal(-n)[max(0, length // 2 - n) :].mean() for n in range(length)])
