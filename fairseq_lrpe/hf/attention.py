"""Softmax attention with an encoding, as a function in Transformers' ``AttentionInterface``.

A layer's attention module has the encoding in its attribute ``encoding``. Keys are cached before they are
encoded, so that all caches of Transformers can be used. A position is an index in the cache.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from fairseq_lrpe.attention import apply_encoding, attention_bias
from fairseq_lrpe.encodings import Encoding, modifies_scores
from fairseq_lrpe.encodings.base import overrides
from fairseq_lrpe.encodings.scores import query_bias

NAME = "fairseq_lrpe"
"""The name of :func:`encoded_attention` among Transformers' implementations of attention."""
_MASKED = -1e4
"""Numbers below it in additive masks hide a key."""


def encoded_attention(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    head_mask: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Returns the outputs (B, Lq, H, d) of softmax attention with ``module.encoding``, and None for weights.

    Args:
        module: the attention module of a layer.
        q: queries (B, H, Lq, d).
        k: keys (B, G, Lk, d) of G groups of heads, not encoded, with those in the cache.
        v: values (B, G, Lk, d).
        attention_mask: True or 0 where a query sees a key, (B, 1, Lq, Lk), or None for causal attention.
        dropout: dropout probability of the weights.
        head_mask: not supported.

    Raises:
        ValueError: if the module has no encoding, for a ``head_mask``, and for positions that the encoding
            does not support.
    """
    encoding = getattr(module, "encoding", None)
    if encoding is None:
        raise ValueError(
            "the model was saved with an encoding in place of its positions, which its own class does not "
            "read: load it with fairseq_lrpe.hf.from_pretrained"
        )
    if head_mask is not None:
        raise ValueError("attention with an encoding does not support head_mask: omit it")
    groups = q.size(1) // k.size(1)
    k = k.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    if not hasattr(module, "c_attn"):  # all but GPT-2 rotate the features t and t + d/2, we 2t and 2t + 1
        q = q.unflatten(-1, (2, -1)).mT.flatten(-2)
        k = k.unflatten(-1, (2, -1)).mT.flatten(-2)
    visible = attention_mask
    if visible is not None and visible.dtype != torch.bool:
        visible = visible > _MASKED
    q, k, bias = encode(encoding, q, k, *_positions(encoding, q, k, visible))
    is_causal = attention_mask is None and q.size(2) > 1
    if bias is not None:
        attention_mask = _masked_bias(bias.to(q.dtype), attention_mask, is_causal)
        is_causal = False
    scale = encoding.scale
    o = F.scaled_dot_product_attention(q, k, v.to(q.dtype), attention_mask, dropout, is_causal, scale=scale)
    return o.transpose(1, 2).to(v.dtype), None


def encode(
    encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor, key_positions: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the encoded queries and keys, and the bias of their scores or None.

    The arguments are those of :func:`apply_encoding`.

    Raises:
        ValueError: if the scores are not those of encoded queries and keys and a bias.
    """
    if not modifies_scores(encoding):
        return *apply_encoding(encoding, q, k, positions, key_positions), None
    if overrides(encoding, "forward") and query_bias(encoding) is None:
        q, k = apply_encoding(encoding, q, k, positions, key_positions)
    return q, k, attention_bias(encoding, q, k, positions, key_positions)


def _positions(encoding, q, k, visible):
    """Returns the positions of queries and keys, (L,), or (B, L) if absolute positions have an effect."""
    at_k = torch.arange(k.size(2), device=k.device)
    if visible is None:
        return at_k[k.size(2) - q.size(2) :], at_k
    # A static cache has keys after the queries; a query's own key is the last key that it sees.
    at_q = (visible * at_k).amax((0, 1, 3))
    if not (encoding.uses_absolute_positions or encoding.draws_noise):
        return at_q, at_k
    # The first token of a row is at position 0, also after padding.
    first = visible.any(2).any(1).int().argmax(-1)
    sees_first = visible.gather(-1, first[:, None, None, None].expand(*visible.shape[:3], 1))
    # All layers have the same mask, and reading it waits for a GPU.
    is_first = encoding.layer == 1 and not torch.compiler.is_compiling()
    if is_first and (visible.any(-1, keepdim=True) & ~sees_first).any():
        raise ValueError(
            f"{encoding.name} depends on the number of preceding tokens, which windows and packed sequences "
            "hide: use another encoding, or neither"
        )
    return (at_q - first[:, None]).clamp(min=0), (at_k - first[:, None]).clamp(min=0)


def _masked_bias(bias, attention_mask, is_causal):
    if attention_mask is None and not is_causal:
        return bias
    if attention_mask is None:
        attention_mask = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril()
    if attention_mask.dtype != torch.bool:
        return bias + attention_mask
    # Not -inf, whose softmax is NaN for padding that sees no key.
    return bias.masked_fill(~attention_mask, torch.finfo(bias.dtype).min)


AttentionInterface.register(NAME, encoded_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
