"""fairseq's encoder and decoder made of our layers."""

from functools import partial
from itertools import count

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase

from fairseq_lrpe.attention import SelfAttention, build_attention
from fairseq_lrpe.config import part_flags
from fairseq_lrpe.models.stamp import MethodStamp


class EncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer around what ``self_attention()`` makes."""

    def __init__(self, cfg, self_attention):
        self._self_attention = self_attention
        super().__init__(cfg)

    def build_self_attention(self, embed_dim, cfg, **_):
        return self._self_attention()


class DecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer around what ``self_attention()`` makes."""

    def __init__(self, cfg, no_encoder_attn, self_attention):
        self._self_attention = self_attention
        super().__init__(cfg, no_encoder_attn)

    def build_self_attention(self, embed_dim, cfg, **_):
        return self._self_attention()


def wrapped(layer, cfg):
    """The layer with what fairseq's --checkpoint-activations and --ddp-backend fully_sharded ask for."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


class Encoder(TransformerEncoderBase):
    """fairseq's encoder made of :class:`EncoderLayer`; padding may be on either side.

    ``args`` has our flags and ``cfg`` fairseq's, which is a TransformerConfig and holds no others.
    """

    def __init__(self, args, cfg, dictionary, embed_tokens):
        self._layer_numbers, self.args = count(1), args
        super().__init__(cfg, dictionary, embed_tokens)
        self.method = MethodStamp(args)

    def build_encoder_layer(self, cfg):
        self_attention = partial(
            build_attention,
            part_flags(self.args, "encoder"),
            embed_dim=cfg.encoder.embed_dim,
            num_heads=cfg.encoder.attention_heads,
            causal=False,
            layer=next(self._layer_numbers),
            max_positions=cfg.max_source_positions,
            dropout=cfg.attention_dropout,
        )
        return wrapped(EncoderLayer(cfg, self_attention), cfg)

    def forward(self, src_tokens, *rest, **kwargs):
        """fairseq's; every sentence is encoded from position 0 on, whatever padding stands before it."""
        before = src_tokens.ne(self.padding_idx).int().argmax(1, keepdim=True)
        if before.any():
            places = torch.arange(src_tokens.size(1), device=src_tokens.device)
            there, back = ((places + sign * before) % len(places) for sign in (1, -1))
            out = super().forward(src_tokens.gather(1, there), *rest, **kwargs)
            return _moved(out, back)
        return super().forward(src_tokens, *rest, **kwargs)

    def reorder_encoder_out(self, encoder_out, new_order):
        """fairseq's; but the rows of one sentence, which beam search reorders at every step, are not copied.

        They were copied from one another, so that nothing changes while every row stays in its sentence.
        """
        (before,) = encoder_out.get("sentences") or [
            torch.arange(encoder_out["encoder_out"][0].size(1), device=new_order.device)
        ]
        sentences = before.index_select(0, new_order)
        if torch.equal(sentences, before):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentences": [sentences]}


def _moved(out, places):
    """An encoder's output in another order of the tokens; ``places`` (B, L)."""
    batch = torch.arange(len(places), device=places.device)
    return {
        **out,
        **{
            name: [x[places.T, batch] for x in out[name]]  # (L, B, E)
            for name in ("encoder_out", "encoder_states")
        },
        **{
            name: [x[batch[:, None], places] for x in out[name]]  # (B, L) and (B, L, E)
            for name in ("encoder_padding_mask", "encoder_embedding")
        },
    }


class Decoder(TransformerDecoderBase):
    """fairseq's decoder made of :class:`DecoderLayer`; ``args`` and ``cfg`` as of :class:`Encoder`."""

    def __init__(self, args, cfg, dictionary, embed_tokens, no_encoder_attn=False):
        self._layer_numbers, self.args = count(1), args
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        self.method = MethodStamp(args)

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        self_attention = partial(
            build_attention,
            part_flags(self.args, "decoder"),
            embed_dim=cfg.decoder.embed_dim,
            num_heads=cfg.decoder.attention_heads,
            causal=True,
            layer=next(self._layer_numbers),
            max_positions=cfg.max_target_positions,
            dropout=cfg.attention_dropout,
        )
        return wrapped(DecoderLayer(cfg, no_encoder_attn, self_attention), cfg)

    def extract_features_scriptable(self, tokens, encoder_out=None, incremental_state=None, *rest, **kwargs):
        """fairseq's; but a first call with an incremental state reads all its tokens, in one pass."""
        if incremental_state is None or incremental_state or tokens.size(1) == 1:
            return super().extract_features_scriptable(
                tokens, encoder_out, incremental_state, *rest, **kwargs
            )
        # fairseq, given a state, would read the last token alone: only attention is told of it.
        attentions = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for attention in attentions:
            attention.prefix_state = incremental_state
        try:
            return super().extract_features_scriptable(tokens, encoder_out, None, *rest, **kwargs)
        finally:
            for attention in attentions:
                attention.prefix_state = None

    def buffered_future_mask(self, tensor):
        """None: attention knows that it is causal, and an n × n mask is what linear attention avoids."""
        return None
