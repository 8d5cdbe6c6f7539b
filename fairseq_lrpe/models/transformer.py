"""Translation models, which are fairseq's ``transformer`` with this plugin's self-attention."""

from dataclasses import dataclass
from typing import Optional

from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from omegaconf import II

from fairseq_lrpe.config import LayerConfig, check_part, flag, with_defaults
from fairseq_lrpe.encodings import check_choice
from fairseq_lrpe.methods import ATTENTIONS
from fairseq_lrpe.models.encoder_decoder import Decoder, Encoder, add_token_positions
from fairseq_lrpe.models.register import register_family

ENCODING_IN = ("encoder", "decoder", "both")
BASE_SIZES = {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8}
DEFAULTS = {f"encoder_{name}": size for name, size in BASE_SIZES.items()}


@dataclass
class TransformerMTConfig(
    with_defaults(LayerConfig, **DEFAULTS, activation_fn="relu", attention_dropout=0.0)
):
    """Flags of fairseq's ``transformer``; the defaults are the base Transformer."""

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
    encoder_normalize_before: bool = flag(False, "apply layernorm before each encoder block")
    decoder_layers: int = flag(6, "number of decoder layers")
    decoder_embed_dim: int = flag(512, "decoder embedding dimension")
    decoder_ffn_embed_dim: int = flag(2048, "hidden dimension of the decoder's feed-forward layers")
    decoder_attention_heads: int = flag(8, "number of decoder attention heads")
    decoder_normalize_before: bool = flag(False, "apply layernorm before each decoder block")
    decoder_input_dim: int = flag(II("model.decoder_embed_dim"), "input dimension (default: the embed dim)")
    decoder_output_dim: int = flag(II("model.decoder_embed_dim"), "output dimension (default: the embed dim)")
    share_decoder_input_output_embed: bool = flag(False, "share the decoder's input and output embeddings")
    share_all_embeddings: bool = flag(False, "share all embeddings (requires a joined dictionary)")
    max_source_positions: int = flag(1024, "maximum source length in tokens")
    max_target_positions: int = flag(1024, "maximum target length in tokens")
    checkpoint_activations: bool = flag(False, "recompute activations in the backward pass to save memory")


def resolve_flags(cfg) -> None:
    """Sets the defaults that depend on other flags; raises a ValueError for invalid flags."""
    cfg.encoder_attention = cfg.encoder_attention or cfg.attention
    for part in ("encoder", "decoder"):
        check_choice(f"{part} attention", getattr(cfg, f"{part}_attention"), ATTENTIONS)
    cfg.encoding_in = cfg.encoding_in or ("encoder" if cfg.encoder_attention == "linear" else "both")
    check_choice("--encoding-in", cfg.encoding_in, ENCODING_IN)
    for part in ("encoder", "decoder"):
        check_part(cfg, part)
    if cfg.share_all_embeddings and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise ValueError(
            f"--share-all-embeddings needs equal embedding dimensions, not {cfg.encoder_embed_dim} in the "
            f"encoder and {cfg.decoder_embed_dim} in the decoder"
        )


class TransformerModel(TransformerModelBase):
    """Transformer with the self-attention and positions that :class:`TransformerMTConfig` selects."""

    check = staticmethod(resolve_flags)

    @classmethod
    def build_model(cls, args, task):
        cfg = TransformerConfig.from_namespace(args)
        cfg.encoder.learned_pos = cfg.decoder.learned_pos = args.token_positions == "learned"
        cfg.no_token_positional_embeddings = args.token_positions == "none"
        source, target = task.source_dictionary, task.target_dictionary
        if args.share_all_embeddings and source != target:
            raise SystemExit(
                "fairseq_lrpe: --share-all-embeddings needs one dictionary for both languages: run "
                "fairseq-preprocess with --joined-dictionary"
            )
        embed_source = cls.build_embedding(cfg, source, cfg.encoder.embed_dim)
        if args.share_all_embeddings:
            cfg.share_decoder_input_output_embed, embed_target = True, embed_source
        else:
            embed_target = cls.build_embedding(cfg, target, cfg.decoder.embed_dim)
        encoder = Encoder(args, cfg, source, embed_source)
        decoder = Decoder(args, cfg, target, embed_target)
        add_token_positions(encoder, args, args.max_source_positions)
        add_token_positions(decoder, args, args.max_target_positions)
        return cls(cfg, encoder, decoder)


register_family("transformer", TransformerModel, TransformerMTConfig)
