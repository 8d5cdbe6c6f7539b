"""Softmax attention with a positional encoding."""

import torch
import torch.nn.functional as F

from fairseq_lrpe.attention.base import SelfAttention


class SoftmaxAttention(SelfAttention):
    """softmax(scale·q̃k̃ᵀ + bias) v through torch's ``scaled_dot_product_attention``.

    While decoding the state is the encoded keys, the values and the padding mask so far.

    Args:
        dropout: of the attention weights, in training.
    """

    def __init__(self, encoding, dropout=0.0):
        super().__init__(encoding)
        self.dropout = dropout

    def attend(self, q, k, v, key_padding_mask, past, offset, keep_state):
        q_encoded, k = self.encoding(q, k, offset, offset)
        v = self.encoding.encode_values(v, offset)
        if past is not None:
            key_padding_mask = _join_masks(past["key_padding_mask"], key_padding_mask, offset, q)
            k, v = torch.cat([past["k"], k], dim=2), torch.cat([past["v"], v], dim=2)
        o = F.scaled_dot_product_attention(
            q_encoded,
            k,
            v,
            **self._mask(self.encoding.bias(q_encoded, k, offset), key_padding_mask, q.size(2), k.size(2), q),
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.encoding.scale,
        )
        return self.encoding.decode_output(o, offset), {
            "k": k,
            "v": v,
            "key_padding_mask": key_padding_mask,
        }

    def _mask(self, bias, key_padding_mask, queries, keys, like):
        """The bias and both masks as torch's arguments: ``is_causal`` alone where that is all."""
        causal = self.causal and queries > 1
        if bias is None and key_padding_mask is None and queries == keys:
            return {"is_causal": causal}
        hidden = torch.zeros(1, 1, 1, keys, dtype=torch.bool, device=like.device)
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None, None]
        if causal:
            i = torch.arange(keys - queries, keys, device=like.device)[:, None]
            hidden = hidden | (torch.arange(keys, device=like.device) > i)
        if bias is None:
            return {"attn_mask": ~hidden}
        return {"attn_mask": bias.to(like.dtype).masked_fill(hidden, float("-inf"))}


def _join_masks(past, new, offset, q):
    """(B, offset) and (B, L) padding masks side by side; either may be None, for no padding."""
    if past is None and new is None:
        return None
    parts = [
        torch.zeros(q.size(0), length, dtype=torch.bool, device=q.device) if mask is None else mask
        for mask, length in ((past, offset), (new, q.size(2)))
    ]
    return torch.cat(parts, dim=1)
