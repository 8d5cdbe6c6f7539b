"""Decoder-only language models: fairseq's ``transformer_lm`` with our self-attention."""

from dataclasses import dataclass, field

from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from omegaconf import II

from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.models.coders import Decoder
from fairseq_lrpe.models.door import one_sentence
from fairseq_lrpe.models.register import register_family
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
        cfg = TransformerConfig.from_namespace(args)
        decoder = Decoder(args, cfg, task.target_dictionary, embed_tokens, no_encoder_attn=True)
        place_tokens(decoder, args, decoder.max_target_positions)
        return cls(decoder)


register_family("lm", LanguageModel, LMConfig)
