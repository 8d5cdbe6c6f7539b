"""Decoder-only language models: fairseq's ``transformer_lm`` with our self-attention."""

from dataclasses import dataclass, field
from functools import partial
from itertools import count

from fairseq.models.transformer import TransformerDecoder
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from omegaconf import II

from fairseq_lrpe.attention import SelfAttention, build_attention
from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.models.door import one_sentence
from fairseq_lrpe.models.layers import DecoderLayer, wrapped
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.stamp import MethodStamp
from fairseq_lrpe.models.token_positions import place_tokens


@dataclass
class LMConfig(PositionConfig, TransformerLanguageModelConfig):
    """fairseq's language model flags; layers are pre-norm, and one width serves input and output."""

    decoder_normalize_before: bool = field(
        default=True,
        metadata={"help": "apply layernorm before each decoder block, as every published run did"},
    )
    decoder_input_dim: int = field(
        default=II("model.decoder_embed_dim"),
        metadata={"help": "decoder input dimension (default: embed dim)"},
    )
    decoder_output_dim: int = field(
        default=II("model.decoder_embed_dim"),
        metadata={"help": "decoder output dimension (default: embed dim)"},
    )


class Decoder(TransformerDecoder):
    """fairseq's decoder made of :class:`DecoderLayer`."""

    def __init__(self, args, *rest, **kwargs):
        self._layer_numbers = count(1)
        super().__init__(args, *rest, **kwargs)
        self.method = MethodStamp(args)
        place_tokens(self, args, self.max_target_positions)

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        # cfg is fairseq's and lost our flags; self.args has them.
        self_attention = partial(
            build_attention,
            self.args,
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


class LanguageModel(TransformerLanguageModel):
    """A decoder whose attention and position are given by the flags of :class:`LMConfig`."""

    @classmethod
    def check(cls, cfg):
        encoding_from_config(
            cfg, embed_dim=cfg.decoder_embed_dim, num_heads=cfg.decoder_attention_heads, causal=True
        )

    @classmethod
    def build_model(cls, args, task):
        with one_sentence():
            cls.check(args)
        args.decoder_learned_pos |= args.token_positions == "learned"
        args.no_token_positional_embeddings |= args.token_positions == "none"
        # fairseq knows every kind of embedding; its decoder around them gives way to ours.
        embed_tokens = super().build_model(args, task).decoder.embed_tokens
        return cls(Decoder(args, task.target_dictionary, embed_tokens, no_encoder_attn=True))


register_family("lm", LanguageModel, LMConfig)
