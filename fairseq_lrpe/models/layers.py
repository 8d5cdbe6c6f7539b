"""Base classes of encoders, decoders and their layers with this plugin's self-attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_lrpe.attention.fairseq_adapter import (
    FairseqSelfAttention,
    SharedEncoding,
    build_attention,
    with_arguments,
)
from fairseq_lrpe.config_parts import part_config
from fairseq_lrpe.models.compilation import CompiledLayer
from fairseq_lrpe.models.fingerprint import MethodFingerprint
from fairseq_lrpe.ops.position_index import random_position_index
from fairseq_lrpe.utils.errors import user_errors


def transformer_config(args) -> TransformerConfig:
    """Returns a model's flags as the configuration of fairseq's encoder, decoder and layers.

    Its attribute ``args`` has all flags of the model. fairseq's conversion alone would lose those that are
    not fields of TransformerConfig, such as the four of NormFormer.
    """
    cfg = TransformerConfig.from_namespace(args)
    cfg.args = args
    cfg.checkpoint_activations |= cfg.offload_activations
    for name in ("scale_attn", "scale_heads", "scale_fc", "scale_resids"):
        setattr(cfg, name, getattr(args, name, False))
    return cfg


class CustomAttentionLayer(CompiledLayer):
    """Base class of fairseq's layers, whose self-attention is the result of ``self_attention()``."""

    def __init__(self, self_attention, *args):
        self._self_attention = self_attention
        super().__init__(*args)

    def build_self_attention(self, embed_dim, cfg, **_):
        attention = self._self_attention()
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
        return attention


class CustomLayers:
    """Mixin for fairseq's encoder and decoder, which builds layers with this plugin's self-attention.

    ``cfg`` is the result of :func:`transformer_config`.
    """

    part: str
    """The part of the model that the class is, "encoder" or "decoder"."""

    def __init__(self, cfg, dictionary, embed_tokens, **kwargs):
        self.args = cfg.args
        self._shared_encoding = SharedEncoding()
        # A pruned model consists of some layers of the trained one, whose encodings can depend on the layer.
        self._layers = getattr(cfg.args, f"{self.part}_layers")
        sizes = getattr(cfg, self.part)
        kept = range(self._layers)
        if sizes.layers_to_keep:
            kept = sorted(map(int, sizes.layers_to_keep.split(",")))
        sizes.layers = len(kept)
        self._remaining_layers = iter(kept)
        self.randomized_positions = part_config(cfg.args, self.part).randomized_positions or 0
        super().__init__(cfg, dictionary, embed_tokens, **kwargs)
        self.method = MethodFingerprint(cfg.args)

    def build_layer(self, layer_cls, cfg, max_positions, *args):
        """Returns the next layer, wrapped for --checkpoint-activations and --ddp-backend fully_sharded."""
        sizes = getattr(cfg, self.part)
        self_attention = partial(
            build_attention,
            part_config(self.args, self.part),
            embed_dim=sizes.embed_dim,
            num_heads=sizes.attention_heads,
            causal=self.part == "decoder",
            layer=next(self._remaining_layers) + 1,
            layers=self._layers,
            max_positions=self.randomized_positions or max_positions,
            dropout=cfg.attention_dropout,
            shared=self._shared_encoding,
        )
        layer = layer_cls(self_attention, cfg, *args)
        if cfg.checkpoint_activations:
            layer.recomputes = True
            layer.offloads = cfg.offload_activations
        # Like fairseq, which wraps every layer whose activations are recomputed, however small it is.
        smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(layer, min_num_params=smallest)

    @contextmanager
    def positions_of(self, tokens: Tensor) -> Iterator[None]:
        """Gives tokens (B, L) the same random positions in all layers, if --randomized-positions is given.

        The positions are drawn for each batch in training, and fixed for each length L otherwise. All rows
        have the same positions, of which a row with padding uses the first ones.
        """
        if not self.randomized_positions:
            yield
            return
        with user_errors():
            index = random_position_index(
                tokens.size(1), self.randomized_positions, tokens.device, fixed=not self.training
            )
        embeddings = [] if self.embed_positions is None else [self.embed_positions]
        with (
            with_arguments(*self_attentions(self), position_index=index),
            with_arguments(*embeddings, positions=index.query_positions),
        ):
            yield


def self_attentions(module: nn.Module) -> list[FairseqSelfAttention]:
    """Returns the self-attention of each layer of an encoder or decoder."""
    return [x for x in module.modules() if isinstance(x, FairseqSelfAttention)]
