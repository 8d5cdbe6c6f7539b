"""fairseq's Transformer encoder with this plugin's self-attention; its padding may be on either side."""

import torch
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_lrpe.attention.fairseq_adapter import with_arguments
from fairseq_lrpe.fairseq_ext.host_copies import on_both, on_host
from fairseq_lrpe.models.layer_stacks import EncoderStack, padding_mask
from fairseq_lrpe.models.layers import CustomAttentionLayer, CustomLayers

COPIED_WEIGHTS = (
    "in_proj_weight",
    "in_proj_bias",
    "out_proj_weight",
    "out_proj_bias",
    "fc1_weight",
    "fc1_bias",
    "fc2_weight",
    "fc2_bias",
)
"""Parameters of an encoder layer of fairseq 0.12.2 that are copies of other parameters."""


class EncoderLayer(CustomAttentionLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer with this plugin's self-attention."""

    def __init__(self, *args):
        super().__init__(*args)
        # fairseq 0.12.2 evaluates some layers by a fused operation of torch with copies of their weights. It
        # computes plain softmax attention.
        self.can_use_fastpath = False
        for name in COPIED_WEIGHTS:
            self._parameters.pop(name, None)

    def _load_from_state_dict(self, *args):
        nn.Module._load_from_state_dict(self, *args)  # fairseq 0.12.2 would add the copies

    def forward(self, x, encoder_padding_mask, attn_mask=None, keys=None):
        """Encodes x (L, B, E) like fairseq, with keys and values from ``keys`` (L, B, E) if given."""
        if keys is None:
            return super().forward(x, encoder_padding_mask, attn_mask)
        keys = self.self_attn_layer_norm(keys) if self.normalize_before else keys
        with with_arguments(self.self_attn, keys=keys):
            return super().forward(x, encoder_padding_mask, attn_mask)


class Encoder(CustomLayers, EncoderStack):
    """fairseq's encoder with :class:`EncoderLayer`; padding may be on the left or on the right."""

    part = "encoder"

    def build_encoder_layer(self, cfg):
        return self.build_layer(EncoderLayer, cfg, cfg.max_source_positions)

    def forward(self, src_tokens, *rest, **kwargs):
        """Encodes tokens like fairseq, except that the first token after left padding is at position 0."""
        with self.positions_of(src_tokens):
            if not self._leading_padding(on_host(src_tokens)).any():
                return super().forward(src_tokens, *rest, **kwargs)
            padding = self._leading_padding(src_tokens)
            index = torch.arange(src_tokens.size(1), device=src_tokens.device)
            out = super().forward(on_both(self._without_leading_padding, src_tokens), *rest, **kwargs)
            out = _permute_tokens(out, (index - padding) % len(index))
            return {**out, "encoder_padding_mask": [padding_mask(src_tokens, self.padding_idx)]}

    def _leading_padding(self, tokens):
        """Returns the number of padding tokens on the left of each row of tokens (B, L), as (B, 1)."""
        return tokens.ne(self.padding_idx).int().argmax(1, keepdim=True)

    def _without_leading_padding(self, tokens):
        """Returns tokens (B, L) with all padding on the right."""
        index = torch.arange(tokens.size(1), device=tokens.device)
        return tokens.gather(1, (index + self._leading_padding(tokens)) % len(index))

    def reorder_encoder_out(self, encoder_out, new_order):
        """Reorders rows like fairseq, but copies nothing if every new row is of the same sentence.

        Every step of beam search reorders the rows of each sentence, and the rows of a sentence are equal.
        """
        (old,) = encoder_out.get("sentences") or [
            torch.arange(encoder_out["encoder_out"][0].size(1), device=new_order.device)
        ]
        sentences = old.index_select(0, new_order)
        if torch.equal(sentences, old):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentences": [sentences]}


def _permute_tokens(out, index):
    """Returns an encoder's output with its tokens in the order ``index`` (B, L)."""
    batch = torch.arange(len(index), device=index.device)
    out = dict(out)
    for name in ("encoder_out", "encoder_states"):
        out[name] = [x[index.T, batch] for x in out[name]]  # (L, B, E)
    for name in ("encoder_padding_mask", "encoder_embedding"):
        out[name] = [x[batch[:, None], index] for x in out[name]]  # (B, L) and (B, L, E)
    return out


def pad_left(out):
    """Returns an encoder's output with all padding on the left, so that distances to the target are exact."""
    padding = out["encoder_padding_mask"][0]
    if not _trailing_padding(on_host(padding)).any():
        return out
    index = torch.arange(padding.size(1), device=padding.device)
    return _permute_tokens(out, (index - _trailing_padding(padding)) % len(index))


def _trailing_padding(padding):
    """Returns the number of padding tokens on the right of each row of a mask (B, L), as (B, 1)."""
    return (~padding).flip(1).int().argmax(1, keepdim=True)


def segment_ids(tokens: Tensor, end: int) -> Tensor:
    """Returns the segment of each token (B, L): 0 up to the first token ``end`` of a row, and 1 after it."""
    ends = tokens.eq(end).int()
    return (ends.cumsum(1) - ends).clamp(max=1)
