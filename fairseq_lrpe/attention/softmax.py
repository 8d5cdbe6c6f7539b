"""Softmax attention with a positional encoding."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.rows import append_rows, select_rows
from fairseq_lrpe.attention.state import STATE_REMEDY
from fairseq_lrpe.encodings import Context, Encoding, prepare_scores
from fairseq_lrpe.encodings.scores import block_scores, cached_keys, log_weights, modifies_scores
from fairseq_lrpe.encodings.transformations import decode_output, encode_values, needs_weights
from fairseq_lrpe.ops.autograd import KeepLayout, apply, is_exporting, recompute
from fairseq_lrpe.ops.decay import is_constant

_CAUSAL_BLOCK_SIZE = 128
"""Approximate number of queries per block of causal attention if the encoding modifies its scores."""

_MAX_BIAS_ELEMENTS = 2**21
"""Maximum number of scores per block of a sequence of more than 1,024 positions."""

_HAS_SAFE_SOFTMAX = hasattr(torch, "_safe_softmax")
"""Whether scaled_dot_product_attention returns 0, not NaN, for queries without keys (since torch 2.5)."""

_MIN_FLASH_KEYS = 512
"""Number of keys from which values are padded to the width of wider q and k, in training on a CPU.

torch's flash kernel for CPUs requires equal widths; otherwise torch computes the n × n weights of all heads.
On a GPU, torch's memory-efficient kernel supports values of any width.
"""


class SoftmaxAttention(SelfAttention):
    """Softmax self-attention with a positional encoding.

    The output is softmax(scale·q kᵀ + bias) v of the encoded q, k and v, computed by torch's
    ``scaled_dot_product_attention``. If the scores of the encoding do not have this form, a softmax, or with
    ``log_weights`` the exponential function, is applied to the scores that the encoding computes.

    A bias is computed for one block of queries at a time, because it has length × length entries. Causal
    blocks use only the keys up to their last query. Above 1,024 positions, the bias is not stored but
    recomputed in the backward pass, so that memory grows linearly with the length. The state for decoding
    contains encoded keys, values, decays that depend on the input, the padding mask, and the row order that
    ``reorder_state`` stores and the next call applies.

    Args:
        embed_dim: embedding dimension E.
        num_heads: number of heads.
        encoding: the positional encoding or its name.
        causal: whether attention is causal; required if ``encoding`` is a name.
        dropout: dropout probability of the attention weights in training.
        **options: see :class:`SelfAttention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        encoding: str | Encoding,
        *,
        causal: bool | None = None,
        dropout: float = 0.0,
        **options,
    ):
        super().__init__(embed_dim, num_heads, encoding, causal=causal, **options)
        self.dropout = dropout
        self._use_blocks = modifies_scores(self.encoding) or needs_weights(self.encoding)

    window = 0
    """Number of keys to which a query attends, including its own; 0 means no limit."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, past: dict | None, return_state: bool
    ) -> tuple[Tensor, dict]:
        q, k = self.encoding(q, k, context)
        v = encode_values(self.encoding, v, context).to(q.dtype)
        decay = self.encoding.log_decay(context)
        varies = decay is not None and not is_constant(decay)
        if past is not None:
            _check_past(past, q, context.k_offset)
            order = past["order"]
            past_mask = past["key_padding_mask"]
            lengths = context.k_offset, k.size(2)
            mask = _concat_masks(select_rows(past_mask, order), context.key_padding_mask, *lengths)
            context = context._replace(key_padding_mask=mask)
            k = append_rows(past["k"], order, k)
            v = append_rows(past["v"], order, v)
            if decay is not None and varies:
                decay = append_rows(past["log_decay"], order, decay)
        state = {"v": v, "log_decay": decay if varies else None, "order": None}
        context = context._replace(log_decay=decay)

        length = q.size(2)
        outputs = []
        block_size = length
        if self._use_blocks:
            # Blocks have nearly equal sizes, so that 150 queries are not split into 128 and 22.
            if self.causal:
                block_size = math.ceil(length / max(1, round(length / _CAUSAL_BLOCK_SIZE)))
            if length > 1024 and not is_exporting():
                elements = max(1, q.size(0) * q.size(1) * k.size(2))  # of a query; a batch can be empty
                block_size = min(block_size, max(16, _MAX_BIAS_ELEMENTS // elements))
        attend_block = self._attend_block
        if length > 1024 and block_size < length:
            attend_block = partial(recompute, attend_block)
        context = prepare_scores(self.encoding, q, k, context)
        # The largest block comes first, so that the others reuse its memory.
        for number in reversed(range(math.ceil(length / max(1, block_size)))):
            start = number * block_size
            block = q[:, :, start : start + block_size]
            num_keys = k.size(2) - length + start + block.size(2) if self.causal else k.size(2)
            block_context = context.block(start, block.size(2), num_keys)
            outputs.append(attend_block(block, k[:, :, :num_keys], v[:, :, :num_keys], block_context))
        o = outputs[0] if len(outputs) == 1 else torch.cat(outputs[::-1] or [v[:, :, :0]], dim=2)
        state["k"] = cached_keys(self.encoding, k, context) if return_state else k
        return o, {**state, "key_padding_mask": context.key_padding_mask}

    def _attend_block(self, q, k, v, context):
        """Returns the outputs of a block of queries, whose keys start at position 0."""
        encoding = self.encoding
        dropout = self.dropout if self.training else 0.0
        scores = block_scores(encoding, q, k, context)
        bias = encoding.bias(q, k, context) if scores is None else scores
        mask = self._mask_arguments(bias, q, k, context)
        padded = context.key_padding_mask is not None
        # On a CPU, scaled_dot_product_attention is slow for the single query of a decoding step.
        fused = (q.size(2) > 1 or q.is_cuda) and (_HAS_SAFE_SOFTMAX or not padded)
        if scores is None and not needs_weights(encoding) and fused:
            width = v.size(-1)
            training = torch.is_grad_enabled()
            # torch's flash kernel for CPUs does not support dropout.
            if q.size(-1) > width and not (
                q.is_cuda or dropout or (training and k.size(2) < _MIN_FLASH_KEYS)
            ):
                v = F.pad(v, (0, q.size(-1) - width))
            o = F.scaled_dot_product_attention(q, k, v, **mask, dropout_p=dropout, scale=encoding.scale)
            # On an H200 (torch 2.11), torch's attention had wrong gradients for RoPER in bfloat16, the only
            # encoding whose gradient of o has another memory layout than o.
            o = apply(KeepLayout, o) if q.is_cuda else o
            return decode_output(encoding, o[..., :width], context)
        masked = mask.get("attn_mask")
        if scores is None:
            masked = _masked_scores(encoding.scale * q, k, masked)
        if log_weights(encoding):
            weights = masked.exp()
        else:
            weights = _masked_softmax(masked) if padded else torch.softmax(masked, dim=-1)
        weights = F.dropout(weights, dropout)
        o = _matmul(weights, v)
        return decode_output(encoding, o, context, weights if needs_weights(encoding) else None)

    def _mask_arguments(self, bias, q, k, context):
        """Returns bias and masks as torch's keyword argument, ``is_causal`` or ``attn_mask``."""
        queries = q.size(2)
        keys = k.size(2)
        key_padding_mask = context.key_padding_mask
        offset = keys - queries  # number of keys before the first query, if causal
        # In torch.compile, the comparison alone is a symbol, which torch's attention refuses.
        causal = self.causal if queries > 1 else False
        windowed = 0 < self.window < keys
        plain = bias is None and key_padding_mask is None and not windowed and (offset == 0 or not causal)
        if plain and not needs_weights(self.encoding):  # which needs the mask itself
            return {"is_causal": causal}
        masked = torch.zeros(1, 1, 1, keys, dtype=torch.bool, device=q.device)
        if key_padding_mask is not None:
            masked = masked | key_padding_mask[:, None, None, :keys]
        if causal or windowed:
            i = torch.arange(offset, offset + queries, device=q.device)[:, None]
            distance = i - torch.arange(keys, device=q.device)
            masked = masked | (distance < 0) if causal else masked
            masked = masked | (distance >= self.window) if windowed else masked
        if bias is None:
            return {"attn_mask": ~masked}
        return {"attn_mask": bias.to(q.dtype).masked_fill(masked, float("-inf"))}


def _masked_scores(q, k, mask):
    """Returns q kᵀ with the ``attn_mask`` of torch's attention (bool, additive, or None) applied."""
    scores = _matmul(q, k.mT)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask


def _masked_softmax(scores):
    """Returns the softmax of scores that are -inf at masked keys, and 0 for queries without visible keys."""
    all_masked = scores.isneginf().all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(all_masked, 0.0), dim=-1).masked_fill(all_masked, 0.0)


def _matmul(a, b):
    # torch multiplies the many small matrices of a decoding step far slower with four dimensions than three.
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


def _concat_masks(past, new, past_length, new_length):
    """Concatenates padding masks (B, past_length) and (B, new_length), where None stands for no padding."""
    if past is None:
        return None if new is None else F.pad(new, (past_length, 0))
    return F.pad(past, (0, new_length)) if new is None else torch.cat([past, new], dim=1)


def _check_past(past, q, length):
    """Raises a ValueError if ``past`` does not contain ``length`` keys for the batch and heads of q."""
    if "k" not in past:
        raise ValueError(f"the state is not one of softmax attention: {STATE_REMEDY}")
    batch, *rest = past["k"].shape[:3]
    found = (batch if past["order"] is None else len(past["order"]), *rest)
    expected = (*q.shape[:2], length)
    if found != expected:
        raise ValueError(
            f"the state has keys of shape (batch, heads, length) {found}, not {expected}: {STATE_REMEDY}"
        )
