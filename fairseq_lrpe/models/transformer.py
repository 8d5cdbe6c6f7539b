"""Translation models, which are fairseq's ``transformer`` with this plugin's self-attention."""

from dataclasses import dataclass
from typing import Optional

from fairseq.models.transformer import TransformerModelBase
from omegaconf import II

from fairseq_lrpe.config import TRANSFORMER_FLAGS, LayerConfig, fairseq_flags, flag, with_defaults
from fairseq_lrpe.config_parts import part_config
from fairseq_lrpe.config_validation import check_part
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import ATTENTIONS
from fairseq_lrpe.models.decoder import Decoder
from fairseq_lrpe.models.encoder import Encoder
from fairseq_lrpe.models.layers import transformer_config
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import add_token_positions
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import check_flag

ENCODING_IN = ("encoder", "decoder", "both")
BASE_SIZES = {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8}
DEFAULTS = {f"encoder_{name}": size for name, size in BASE_SIZES.items()}
REPLACED_FLAGS = {
    *("encoder_learned_pos", "decoder_learned_pos", "no_token_positional_embeddings"),  # --token-positions
    *("encoder_xformers_att_config", "decoder_xformers_att_config"),  # --attention
    *("adaptive_input", "char_inputs"),  # fairseq ignores them
}
"""Flags of fairseq's ``transformer`` that this family does not have."""


@dataclass
class TransformerMTConfig(
    with_defaults(LayerConfig, **DEFAULTS, activation_fn="relu", attention_dropout=0.0),
    fairseq_flags(*(name for name in TRANSFORMER_FLAGS if name not in REPLACED_FLAGS)),
):
    """Flags of fairseq's ``transformer``, with the sizes of the base Transformer by default."""

    encoder_attention: Optional[str] = flag(  # noqa: UP045  (fairseq's parser does not support X | None)
        None, "kind of self-attention in the encoder (default: --attention)"
    )
    decoder_attention: str = flag(
        "softmax", "kind of self-attention in the decoder (in the LRPE paper, linear does not converge)"
    )
    encoding_in: Optional[str] = flag(  # noqa: UP045
        None,
        f"part of the model with the encoding: {', '.join(ENCODING_IN)} (default: encoder if its attention "
        "is linear, as in the LRPE paper, and both otherwise)",
    )
    tupe_cls: bool = flag(
        False, "give the first token separate position scores in TUPE, as if each source began with <s>"
    )
    decoder_input_dim: int = flag(II("model.decoder_embed_dim"), "not used")
    decoder_output_dim: int = flag(II("model.decoder_embed_dim"), "output embedding dim (default: embed dim)")


def resolve_flags(cfg) -> None:
    """Sets the defaults that depend on other flags; raises a UserError for invalid flags."""
    cfg.encoder_attention = cfg.encoder_attention or cfg.attention
    for part in ("encoder", "decoder"):
        check_flag(f"{part} attention", getattr(cfg, f"{part}_attention"), ATTENTIONS)
    cfg.encoding_in = cfg.encoding_in or ("encoder" if cfg.encoder_attention == "linear" else "both")
    check_flag("--encoding-in", cfg.encoding_in, ENCODING_IN)
    for part in ("encoder", "decoder"):
        check_part(cfg, part)
    encoding = ENCODINGS[part_config(cfg, "decoder").encoding]
    if cfg.cross_self_attention and encoding.uses_absolute_positions:
        raise UserError(
            f"--cross-self-attention does not support {encoding.name} in the decoder, because its absolute "
            "positions would depend on the padding of the source: omit --cross-self-attention, or pass "
            "--encoding-in encoder"
        )


class TransformerModel(TransformerModelBase):
    """Transformer with the self-attention and positions that :class:`TransformerMTConfig` selects."""

    check = staticmethod(resolve_flags)

    @classmethod
    def build_model(cls, args, task):
        cfg = transformer_config(args)
        cfg.encoder.learned_pos = cfg.decoder.learned_pos = args.token_positions == "learned"
        cfg.no_token_positional_embeddings = args.token_positions == "none"
        model = super().build_model(cfg, task)
        add_token_positions(model.encoder, args, args.max_source_positions)
        add_token_positions(model.decoder, args, args.max_target_positions)
        return model

    @classmethod
    def build_encoder(cls, cfg, dictionary, embed_tokens):
        return Encoder(cfg, dictionary, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, dictionary, embed_tokens):
        return Decoder(cfg, dictionary, embed_tokens, no_encoder_attn=cfg.no_cross_attention)


register_family("transformer", TransformerModel, TransformerMTConfig)
