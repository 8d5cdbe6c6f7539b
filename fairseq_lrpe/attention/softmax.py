"""Softmax attention with a positional encoding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.encodings import Encoding

_CAUSAL_ROWS = 128
"""Queries that a causal bias is made for at a time."""

_BIAS_ELEMENTS = 2**21
"""Scores that it is made for at a time, at most, when the sequence is long."""

_LONG = 512
"""Keys from which on a CPU trains faster when values are filled up to the width of wider q and k.

Its flash kernel takes equal widths alone, and otherwise torch makes all n × n weights of all heads. On a GPU
torch's memory-efficient kernel takes values of any width.
"""


class SoftmaxAttention(SelfAttention):
    """Computes softmax(scale·q̃k̃ᵀ + bias) v through torch's ``scaled_dot_product_attention``.

    An encoding whose scores are none of that form makes them itself, and their softmax is plain.

    While decoding the state is the encoded keys, the values and the padding mask so far, and the order that
    beam search has since put their rows in. A bias is a matrix
    of length × length. It is made for some queries at a time: when causal, they meet only the keys up to
    the last of them; and beyond 1,024 positions it is dropped after use (and made again in the backward
    pass), so that memory grows with the length, not with its square.

    Args:
        dropout: of the attention weights, in training.
    """

    def __init__(self, encoding: Encoding, dropout: float = 0.0):
        super().__init__(encoding)
        self.dropout = dropout
        self._biased = encoding.biased or encoding.needs_weights

    window = 0
    """How many keys a query sees, itself among them; 0 is all that are not after it."""

    def attend(self, q, k, v, key_padding_mask, past, q_offset, k_offset, keep_state, steps):
        q, k = self.encoding(q, k, q_offset, k_offset)
        v = self.encoding.encode_values(v, k_offset)
        if past is not None:
            order, hidden = past["order"], past["key_padding_mask"]
            if order is not None and hidden is not None:
                hidden = hidden.index_select(0, order)
            key_padding_mask = _join_masks(hidden, key_padding_mask, k_offset, k)
            k, v = _append(past["k"], order, k), _append(past["v"], order, v)

        length, parts = q.size(2), []
        rows, drop = length, length > 1024 and torch.is_grad_enabled()
        if self._biased:
            # As even as can be: of 150 rows the last 22 are no block of their own.
            rows = math.ceil(length / max(1, round(length / _CAUSAL_ROWS))) if self.causal else length
            if length > 1024:
                rows = min(rows, max(16, _BIAS_ELEMENTS // (q.size(0) * q.size(1) * k.size(2))))
        scores = self.encoding.scores_in_parts(q, k, q_offset, key_padding_mask, steps)
        bias = self.encoding.bias_in_parts(q, k, q_offset) if scores is None else None
        for start in reversed(range(0, length, rows)):  # the largest first: the others fit into its memory
            part = q[:, :, start : start + rows]
            keys = q_offset + start + part.size(2) if self.causal else k.size(2)
            mask = None if key_padding_mask is None else key_padding_mask[:, :keys]
            offset = q_offset + start if self.places is None else q_offset.rows(start, part.size(2))
            arguments = (part, k[:, :, :keys], v[:, :, :keys], mask, offset, bias, scores)
            if rows < length and drop:
                parts.append(checkpoint(self._rows, *arguments, use_reentrant=False))
            else:
                parts.append(self._rows(*arguments))
        o = torch.cat(parts[::-1], dim=2) if len(parts) > 1 else parts[0]
        kept = self.encoding.settled(k, scores) if keep_state else k
        state = {"k": kept, "v": v, "key_padding_mask": key_padding_mask, "order": None}
        return self.encoding.decode_output(o, q_offset), state

    def reordered(self, past: dict, order: Tensor) -> dict:
        """Notes the order: the rows are moved when the next keys and values are appended, in one copy."""
        if past["order"] is not None:
            order = past["order"].index_select(0, order)
        return {**past, "order": order}

    def _rows(self, q, k, v, key_padding_mask, offset, bias, scores):
        """Attention of the queries from position ``offset`` on to the keys 0, 1, .."""
        found = (bias if scores is None else scores)(q, k, offset)
        mask = self._mask(found, key_padding_mask, q, k, offset)
        dropout = self.dropout if self.training else 0.0
        # On a CPU torch's own attention is slow for the one query of a decoding step.
        if scores is None and not self.encoding.needs_weights and (q.size(2) > 1 or q.is_cuda):
            width, training = v.size(-1), torch.is_grad_enabled()
            # With dropout no kernel of a CPU is flash.
            if q.size(-1) > width and not (q.is_cuda or dropout or (training and k.size(2) < _LONG)):
                v = F.pad(v, (0, q.size(-1) - width))
            o = F.scaled_dot_product_attention(q, k, v, **mask, dropout_p=dropout, scale=self.encoding.scale)
            return o[..., :width]
        seen = mask.get("attn_mask")
        found = _scores(self.encoding.scale * q, k, seen) if scores is None else seen
        weights = torch.softmax(found, dim=-1) if key_padding_mask is None else _weights(found)
        weights = F.dropout(weights, dropout)
        o = _product(weights, v)
        return o + self.encoding.values_from_weights(weights, offset) if self.encoding.needs_weights else o

    def _mask(self, bias, key_padding_mask, q, k, offset):
        """The bias and both masks as torch's arguments: ``is_causal`` alone where that is all."""
        queries, keys = q.size(2), k.size(2)
        causal = self.causal and queries > 1
        windowed = 0 < self.window < keys
        if bias is None and key_padding_mask is None and not windowed and (offset == 0 or not causal):
            return {"is_causal": causal}
        hidden = torch.zeros(1, 1, 1, keys, dtype=torch.bool, device=q.device)
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None, None]
        if causal or windowed:
            i = torch.arange(offset, offset + queries, device=q.device)[:, None]
            distance = i - torch.arange(keys, device=q.device)
            hidden = hidden | (distance < 0) if causal else hidden
            hidden = hidden | (distance >= self.window) if windowed else hidden
        if bias is None:
            return {"attn_mask": ~hidden}
        return {"attn_mask": bias.to(q.dtype).masked_fill(hidden, float("-inf"))}


def _scores(q, k, mask):
    """q kᵀ under the mask, which is torch's: bool, True where a key is seen, or added, or None."""
    scores = _product(q, k.mT)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask


def _weights(scores):
    """The softmax of scores, which are -inf where a key is not seen, and which padding may be all of."""
    blind = scores.isneginf().all(-1, keepdim=True)  # a query without keys attends to nothing
    return torch.softmax(scores.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)


def _product(a, b):
    # With four dimensions torch multiplies the many small matrices of a decoding step far slower.
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


def _append(past, order, new):
    """(B, H, n, d), its rows in the order, and (B', H, L, d) -> (B', H, n + L, d)."""
    if order is None:
        return torch.cat([past, new], dim=2)
    if past.requires_grad or new.requires_grad:
        return torch.cat([past.index_select(0, order), new], dim=2)
    length = past.size(2)
    out = new.new_empty(*new.shape[:2], length + new.size(2), new.size(3))
    torch.index_select(past, 0, order, out=out[:, :, :length])
    out[:, :, length:] = new
    return out


def _join_masks(past, new, offset, k):
    """(B, offset) and (B, L) padding masks side by side; either may be None, for no padding."""
    if past is None and new is None:
        return None
    parts = [
        torch.zeros(k.size(0), length, dtype=torch.bool, device=k.device) if mask is None else mask
        for mask, length in ((past, offset), (new, k.size(2)))
    ]
    return torch.cat(parts, dim=1)
