"""Question generators with BERT as the encoder, and a decoder with a copy mechanism."""

import os
import zlib
from argparse import Namespace
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path

import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.models.transformer import Embedding, TransformerModelBase
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_lrpe.config import LayerConfig, flag, layer_flags, with_defaults
from fairseq_lrpe.config_validation import check_part
from fairseq_lrpe.data import bert_weights, word_pieces
from fairseq_lrpe.models.decoder import Decoder
from fairseq_lrpe.models.encoder import Encoder, segment_ids
from fairseq_lrpe.models.layers import transformer_config
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import add_token_positions
from fairseq_lrpe.utils.errors import UserError

EPSILON = 1e-6
"""Constant that is added to probabilities before the logarithm, as in the code of the authors of LFHC."""
BERT_EPSILON = 1e-12
"""Epsilon of the LayerNorms of the encoder."""


@dataclass
class QuestionGeneratorConfig(
    with_defaults(LayerConfig, token_positions="none"), layer_flags("encoder", "decoder")
):
    """Flags of a question generator, with the defaults of Table 2 of the paper on LFHC and GCDF.

    The flags of attention and positions apply to the decoder only, because the encoder is BERT.
    """

    encoder: str = flag(
        bert_weights.SCRATCH,
        "pretrained BERT that initializes the encoder and embeddings: its name on the Hugging Face Hub, or "
        f"its folder ({bert_weights.SCRATCH}: random initialization)",
    )
    decoder_layers: int = flag(3, "number of decoder layers")
    decoder_ffn_embed_dim: int = flag(3072, "hidden dimension of the decoder's feed-forward layers")
    decoder_attention_heads: int = flag(12, "number of decoder attention heads")
    max_source_positions: int = flag(512, "maximum source length in tokens")
    max_target_positions: int = flag(64, "maximum question length in tokens")


def transformer_args(args) -> Namespace:
    """Returns the flags of a question generator with those of fairseq's Transformer that follow from them."""
    flags = asdict(args) if is_dataclass(args) else dict(args)
    del flags["encoder"]  # in fairseq's TransformerConfig, this attribute has the encoder's sizes
    return Namespace(
        **flags,
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
    """Encoder with the architecture of BERT, with learned positions and segments separated by the first </s>.

    The output also contains the source tokens, from which the decoder copies.
    """

    def __init__(self, cfg, dictionary, embed_tokens):
        super().__init__(cfg, dictionary, embed_tokens)
        self.segments = nn.Embedding(2, embed_tokens.embedding_dim)
        self.end = dictionary.eos()
        # The digest identifies the vocabulary, because others can have the same size.
        digest = zlib.crc32("\n".join(dictionary.symbols).encode())
        self.register_buffer("types_version", torch.tensor(digest))
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = BERT_EPSILON

    def forward_embedding(self, src_tokens, token_embedding=None):
        segments = self.segments(segment_ids(src_tokens, self.end))
        return super().forward_embedding(src_tokens, self.embed_tokens(src_tokens) + segments)

    def upgrade_state_dict_named(self, state_dict, name):
        """Raises a UserError if ``state_dict`` is that of a model with another vocabulary."""
        super().upgrade_state_dict_named(state_dict, name)
        stored = state_dict.get(f"{name}.types_version", self.types_version)
        if stored.item() != self.types_version.item():
            raise UserError(
                "the checkpoint has another vocabulary of the same size: pass the data that it was trained on"
            )

    def forward(self, src_tokens, *rest, **kwargs):
        return {**super().forward(src_tokens, *rest, **kwargs), "src_tokens": [src_tokens]}


class CopyingDecoder(Decoder):
    """Decoder that generates the next token from the vocabulary or copies it from the source.

    For features h and the encoder's output S, the probabilities of the next token are
    p = g · softmax(E W h) + (1 − g) · Σ_j a_j [token j], where g = σ(w h), a = softmax(S V h) over the source
    tokens, and E are the embeddings shared by encoder, decoder and output. W, V and w are the linear layers
    ``to_output``, ``to_copy`` and ``gate``. The formula is that of the code
    menghuanlater/Tianchi2020ChineseMedicineQuestionGeneration by the author of LFHC and GCDF.
    """

    def __init__(self, cfg, dictionary, embed_tokens):
        super().__init__(cfg, dictionary, embed_tokens)
        width = self.embed_dim
        self.to_output = nn.Linear(width, width)
        self.to_copy = nn.Linear(width, width)
        self.gate = nn.Linear(width, 1)

    def forward(self, prev_output_tokens, encoder_out=None, *args, features_only=False, **kwargs):
        """Returns the logits of the vocabulary (B, T, V) and a dict for :meth:`get_normalized_probs`.

        The dict contains a (B, T, S) as "copied", g (B, T, 1) as "gate", and the source tokens (B, S) as
        "source". If ``features_only``, returns h (B, T, E) and fairseq's dict, without these entries.
        """
        h, extra = super().forward(prev_output_tokens, encoder_out, *args, features_only=True, **kwargs)
        if features_only:
            return h, extra
        h = self.dropout_module(h)
        states = encoder_out["encoder_out"][0].transpose(0, 1)  # (B, S, E)
        scores = self.to_copy(h) @ states.transpose(1, 2)
        [source] = encoder_out["src_tokens"]
        padding = source.eq(self.padding_idx)[:, None]
        exact = torch.promote_types(h.dtype, torch.float)
        extra["copied"] = scores.to(exact).masked_fill(padding, -torch.inf).softmax(-1)
        extra["gate"] = self.gate(h).to(exact).sigmoid()
        extra["source"] = source
        return self.output_layer(self.to_output(h)), extra

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Returns p (B, T, V), or log(p + 1e-6) if ``log_probs``, for the output of ``forward``.

        fairseq's search truncates the logits to the last token, so the other tensors are truncated, too.
        """
        logits, extra = net_output
        last = logits.size(1)
        gate = extra["gate"][:, -last:]
        copied = extra["copied"][:, -last:]
        index = extra["source"][:, None].expand_as(copied)
        p = (gate * logits.to(gate.dtype).softmax(-1)).scatter_add(2, index, (1 - gate) * copied)
        return (p + EPSILON).log() if log_probs else p


class QuestionGeneratorModel(TransformerModelBase):
    """Question generator with the flags of :class:`QuestionGeneratorConfig`."""

    @staticmethod
    def check(args):
        """Raises a UserError for invalid flags."""
        if args.randomized_positions:
            raise UserError(
                "--randomized-positions is not supported by question generators, which decode token by "
                "token: omit it"
            )
        for part in ("encoder", "decoder"):
            check_part(transformer_args(args), part)

    @staticmethod
    def check_data(cfg, args):
        """Raises a UserError if BERT does not match flags or data, or if a source is too long.

        fairseq would skip sources in training that are longer than --max-source-positions.
        """
        limit = cfg.max_source_positions
        longest = 0
        for folder in filter(None, getattr(args, "data", "").split(os.pathsep)):  # dummy tasks have no data
            for path in Path(folder).glob("*.source.idx"):
                index = MMapIndexedDataset.Index(str(path))
                longest = max(longest, index.sizes.max())
        if longest > limit and not args.skip_invalid_size_inputs_valid_test:
            raise UserError(
                f"a source has {longest} tokens, more than --max-source-positions {limit}: pass "
                f"--max-source-positions {longest}, or prepare the data with --longest {limit}"
            )
        if cfg.encoder != bert_weights.SCRATCH:
            bert_weights.check(cfg, Path(args.data, word_pieces.VOCABULARY))

    @classmethod
    def build_model(cls, args, task):
        args = transformer_args(args)
        dictionary = task.source_dictionary
        embedding = Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
        cfg = transformer_config(args)
        cfg.layernorm_embedding = cfg.encoder.learned_pos = True
        encoder = BertEncoder(cfg, dictionary, embedding).apply(init_bert_params)
        # Both parts read the same configuration, whose remaining values are those of the decoder.
        cfg.layernorm_embedding = False
        cfg.no_token_positional_embeddings = args.token_positions == "none"
        decoder = CopyingDecoder(cfg, dictionary, embedding)
        add_token_positions(decoder, args, args.max_target_positions)
        return cls(cfg, encoder, decoder)


register_family("question_generator", QuestionGeneratorModel, QuestionGeneratorConfig)
