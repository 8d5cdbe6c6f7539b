"""Registers question generators: BERT's encoder, a decoder with the encoding under test, and copying."""

import zlib
from argparse import Namespace
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path

import torch
from fairseq.models.transformer import Embedding, TransformerConfig, TransformerModelBase
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_lrpe import bert, word_pieces
from fairseq_lrpe.config import PositionConfig, check_part, flag
from fairseq_lrpe.models.coders import ACTIVATIONS, Decoder, Encoder, halves
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import place_tokens

EPSILON = 1e-6
"""What is added to a probability before its logarithm, as the loss of LFHC and GCDF's author does."""
BERTS_EPSILON = 1e-12
"""That of the encoder's layernorms."""


@dataclass
class QuestionGeneratorConfig(PositionConfig):
    """Declares a question generator's flags with the defaults of LFHC and GCDF's Table 2.

    The flags of attention and position are the decoder's; the encoder is BERT's.
    """

    token_positions: str = flag("none", "absolute positions of the decoder's token embeddings")
    encoder: str = flag(
        bert.SCRATCH,
        "whose encoder and embeddings a new model starts from: the name of a BERT on Hugging Face's hub, or "
        f"its folder ({bert.SCRATCH}: at random)",
    )
    encoder_layers: int = flag(12, "encoder layers")
    encoder_embed_dim: int = flag(768, "embedding dimension of encoder and decoder")
    encoder_ffn_embed_dim: int = flag(3072, "embedding dimension of the encoder's feed-forward layers")
    encoder_attention_heads: int = flag(12, "encoder attention heads")
    decoder_layers: int = flag(3, "decoder layers")
    decoder_ffn_embed_dim: int = flag(3072, "embedding dimension of the decoder's feed-forward layers")
    decoder_attention_heads: int = flag(12, "decoder attention heads")
    activation_fn: ACTIVATIONS = flag("gelu", "activation function of the feed-forward layers")  # noqa: RUF009
    dropout: float = flag(0.1, "dropout probability")
    attention_dropout: float = flag(0.1, "dropout probability of softmax attention's weights")
    activation_dropout: float = flag(0.0, "dropout probability inside the feed-forward layers")
    max_source_positions: int = flag(512, "the longest source")
    max_target_positions: int = flag(64, "the longest question")
    checkpoint_activations: bool = flag(False, "compute activations anew in the backward pass, for memory")


def settled(args) -> Namespace:
    """Returns the flags with those of fairseq's Transformer that have one value here."""
    given = asdict(args) if is_dataclass(args) else dict(args)
    del given["encoder"]  # fairseq takes it for the encoder's sizes
    return Namespace(
        **given,
        encoder_attention="softmax",
        decoder_attention=args.attention,
        encoding_in="decoder",
        **dict.fromkeys(
            ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"), args.encoder_embed_dim
        ),
        no_scale_embedding=True,
        share_decoder_input_output_embed=True,
        decoder_learned_pos=args.token_positions == "learned",
    )


class BertEncoder(Encoder):
    """Makes BERT of our encoder: learned positions, segments before and after the first </s>, post-norm.

    What it returns has the source's tokens as well, from which the decoder copies.
    """

    def __init__(self, args, cfg, dictionary, embed_tokens):
        super().__init__(args, cfg, dictionary, embed_tokens)
        self.segments = nn.Embedding(2, embed_tokens.embedding_dim)
        self.end = dictionary.eos()
        # Two vocabularies that were learned have as many types; "version" as in MethodStamp.
        digest = zlib.crc32("\n".join(dictionary.symbols).encode())
        self.register_buffer("types_version", torch.tensor(digest))
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = BERTS_EPSILON

    def forward_embedding(self, src_tokens, token_embedding=None):
        segments = self.segments(halves(src_tokens, self.end))
        return super().forward_embedding(src_tokens, self.embed_tokens(src_tokens) + segments)

    def upgrade_state_dict_named(self, state_dict, name):
        """Ends the program where ``state_dict`` is of another vocabulary."""
        super().upgrade_state_dict_named(state_dict, name)
        stored = state_dict.get(f"{name}.types_version", self.types_version)
        if stored.item() != self.types_version.item():
            remedy = "give the data that it was trained on"
            raise SystemExit(f"fairseq_lrpe: the checkpoint has other types in its vocabulary: {remedy}")

    def forward(self, src_tokens, *rest, **kwargs):
        return {**super().forward(src_tokens, *rest, **kwargs), "src_tokens": [src_tokens]}


class CopyingDecoder(Decoder):
    """Makes a decoder whose next token is one of the vocabulary, or one that is copied from the source.

    Of features h and the encoder's output S: p = g · softmax(E W h) + (1 − g) · Σ_j a_j [token j], where
    g = σ(w h), a = softmax(S V h) over the source's tokens, and E the embeddings, which encoder, decoder and
    output share (menghuanlater/Tianchi2020ChineseMedicineQuestionGeneration, by the author of LFHC and GCDF).
    """

    def __init__(self, args, cfg, dictionary, embed_tokens):
        super().__init__(args, cfg, dictionary, embed_tokens)
        width = self.embed_dim
        self.to_output, self.to_copy = nn.Linear(width, width), nn.Linear(width, width)
        self.gate = nn.Linear(width, 1)

    def forward(self, prev_output_tokens, encoder_out=None, *args, features_only=False, **kwargs):
        """Returns the logits of the vocabulary (B, T, V) and, for :meth:`get_normalized_probs`, a dict.

        Of it "copied" (B, T, S) are a and "gate" (B, T, 1) is g; "source" (B, S) are the source's tokens.
        """
        h, extra = super().forward(prev_output_tokens, encoder_out, *args, features_only=True, **kwargs)
        if features_only:
            return h, extra
        h, states = self.dropout_module(h), encoder_out["encoder_out"][0].transpose(0, 1)
        scores = self.to_copy(h) @ states.transpose(1, 2)
        [source] = encoder_out["src_tokens"]
        padding = source.eq(self.padding_idx)[:, None]
        exact = torch.promote_types(h.dtype, torch.float)
        extra["copied"] = scores.to(exact).masked_fill(padding, -torch.inf).softmax(-1)
        extra["gate"], extra["source"] = self.gate(h).to(exact).sigmoid(), source
        return self.output_layer(self.to_output(h)), extra

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Returns p (B, T, V), or log(p + 1e-6), of what ``forward`` returned.

        A search keeps the logits of the last tokens alone: those of the others are left out of the rest, too.
        """
        logits, extra = net_output
        last = logits.size(1)
        gate, copied = (extra[name][:, -last:] for name in ("gate", "copied"))
        places = extra["source"][:, None].expand_as(copied)
        p = (gate * logits.to(gate.dtype).softmax(-1)).scatter_add(2, places, (1 - gate) * copied)
        return (p + EPSILON).log() if log_probs else p


class QuestionGeneratorModel(TransformerModelBase):
    """Builds a question generator with the decoder of :class:`QuestionGeneratorConfig`."""

    @staticmethod
    def check(args):
        """Refuses, by ValueError, flags that cannot be met."""
        for part in ("encoder", "decoder"):
            check_part(settled(args), part)

    @staticmethod
    def check_data(cfg, args):
        """Refuses, by ValueError, an --encoder that cannot be read, or not with the data's vocabulary."""
        bert.check(cfg, Path(args.data, word_pieces.VOCABULARY))

    @classmethod
    def build_model(cls, args, task):
        args, dictionary = settled(args), task.source_dictionary
        embedding = Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
        cfg = TransformerConfig.from_namespace(args)
        cfg.layernorm_embedding = cfg.encoder.learned_pos = True
        encoder = BertEncoder(args, cfg, dictionary, embedding).apply(init_bert_params)
        cfg.layernorm_embedding, cfg.no_token_positional_embeddings = False, args.token_positions == "none"
        decoder = CopyingDecoder(args, cfg, dictionary, embedding)
        place_tokens(decoder, args, args.max_target_positions)
        return cls(cfg, encoder, decoder)


register_family("question_generator", QuestionGeneratorModel, QuestionGeneratorConfig)
