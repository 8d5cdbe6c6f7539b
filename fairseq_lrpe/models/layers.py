"""fairseq's layers around our self-attention."""

from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase


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
