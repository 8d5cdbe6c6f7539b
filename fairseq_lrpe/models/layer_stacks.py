"""fairseq's encoder and decoder, changed to decide on the CPU whether a batch contains padding.

Without padding, attention gets no mask and is faster on a GPU, where torch's flash attention supports no
mask. fairseq's classes read from the GPU in each forward pass whether there is padding. The outputs of the
classes here are bit for bit the same.
"""

from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from torch import Tensor

from fairseq_lrpe.fairseq_ext.host_copies import on_both, on_host


def padding_mask(tokens: Tensor, padding_idx: int) -> Tensor:
    """Returns the mask (B, L) of tokens (B, L) that is True at padding."""
    return on_both(lambda x: x.eq(padding_idx), tokens)


def mask_if_padded(mask: Tensor) -> Tensor | None:
    """Returns a padding mask, or None if there is no padding."""
    return mask if on_host(mask).any() else None


class EncoderStack(TransformerEncoderBase):
    """fairseq's encoder, for layers that return nothing but their output."""

    def forward_scriptable(
        self, src_tokens, src_lengths=None, return_all_hiddens=False, token_embeddings=None
    ):
        mask = padding_mask(src_tokens, self.padding_idx)
        padding = mask_if_padded(mask)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if padding is not None:
            x = x * (1 - padding.unsqueeze(-1).type_as(x))
        x = x.transpose(0, 1)  # (L, B, E)
        states = [x] if return_all_hiddens else []
        for layer in self.layers:
            x = layer(x, encoder_padding_mask=padding)
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, keepdim=True).int()
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [mask],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "src_tokens": [],
            "src_lengths": [lengths],
        }


class DecoderStack(TransformerDecoderBase):
    """fairseq's decoder for self-attention that needs no mask of future tokens."""

    def extract_features_scriptable(
        self,
        prev_output_tokens,
        encoder_out,
        incremental_state=None,
        full_context_alignment=False,
        alignment_layer=None,
        alignment_heads=None,
    ):
        tokens = prev_output_tokens
        aligned = self.num_layers - 1 if alignment_layer is None else alignment_layer
        source = _first(encoder_out, "encoder_out")
        source_padding = _first(encoder_out, "encoder_padding_mask")
        padding = padding_mask(tokens if incremental_state is None else tokens[:, -1:], self.padding_idx)
        if not self.cross_self_attention:
            padding = mask_if_padded(padding)
        x = self._embedded(tokens, incremental_state).transpose(0, 1)  # (L, B, E)
        states = [x]
        attention = None
        for index, layer in enumerate(self.layers):
            x, weights, _ = layer(
                x,
                source,
                source_padding,
                incremental_state,
                self_attn_mask=None,
                self_attn_padding_mask=padding,
                need_attn=index == aligned,
                need_head_weights=index == aligned,
            )
            states.append(x)
            if weights is not None and index == aligned:
                attention = weights.float().to(x)
        if attention is not None:
            attention = attention[:alignment_heads].mean(dim=0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attention], "inner_states": states}

    def _embedded(self, tokens, incremental_state):
        """Returns the inputs of the first layer, (B, L, E), or (B, 1, E) for the last token in decoding."""
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:]
            positions = positions if positions is None else positions[:, -1:]
        x = self.embed_scale * self.embed_tokens(tokens.contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x += positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)


def _first(encoder_out, name):
    """Returns the tensor of an encoder's output, or None if there is none."""
    return encoder_out[name][0] if encoder_out and encoder_out[name] else None
