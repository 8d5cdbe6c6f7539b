"""Classifiers of texts, pairs of texts, and images as token sequences, with fairseq's encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import Embedding
from fairseq.tasks import FairseqTask
from omegaconf import II, open_dict
from torch import Tensor, nn

from fairseq_lrpe.config import LayerConfig, flag, with_defaults
from fairseq_lrpe.config_validation import check_part
from fairseq_lrpe.data import layout, word_vectors
from fairseq_lrpe.models.encoder import Encoder, EncoderLayer, segment_ids
from fairseq_lrpe.models.initialization import INIT_STD_HELP, init_normal
from fairseq_lrpe.models.layer_stacks import mask_if_padded, padding_mask
from fairseq_lrpe.models.layers import transformer_config
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_batch_norm import TokenBatchNorm
from fairseq_lrpe.models.token_positions import add_token_positions
from fairseq_lrpe.tasks.classification import is_joined
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.suggest import check_flag

NORMS = ("batch", "layer")
PIXELS = ("linear", "embedding")


LRA_SIZES = {"layers": 4, "embed_dim": 128, "ffn_embed_dim": 256, "attention_heads": 8}
DEFAULTS = {f"encoder_{name}": size for name, size in LRA_SIZES.items()}


@dataclass
class ClassifierConfig(with_defaults(LayerConfig, **DEFAULTS, dropout=0.0, attention_dropout=0.0)):
    """Flags of a classifier, whose default sizes are those of the smaller tasks of Long-Range Arena."""

    encoder_normalize_before: bool = flag(True, "normalize before each block and after the last layer")
    encoder_norm: str = flag("batch", f"type of normalization: {', '.join(NORMS)}")
    encoder_input_dim: int = flag(
        II("model.encoder_embed_dim"),
        "dimension of the token embeddings, which are projected to --encoder-embed-dim if it differs",
    )
    embed_path: Optional[str] = flag(None, "file of initial word vectors in GloVe's format")  # noqa: UP045
    pixels: str = flag(
        "linear",
        "representation of a pixel: a projection of its value (linear) or one of 256 embeddings (embedding)",
    )
    layernorm_embedding: bool = flag(False, "apply layernorm to the embeddings")
    no_scale_embedding: bool = flag(False, "do not multiply embeddings by the square root of their dimension")
    init_std: float = flag(0.0, INIT_STD_HELP)


class BatchNormLayer(EncoderLayer):
    """Encoder layer with :class:`TokenBatchNorm` instead of layer normalization."""

    def __init__(self, *args):
        super().__init__(*args)
        self.self_attn_layer_norm = TokenBatchNorm(self.embed_dim)
        self.final_layer_norm = TokenBatchNorm(self.embed_dim)

    def forward(self, x, encoder_padding_mask, *rest, **kwargs):
        self.self_attn_layer_norm.padding = self.final_layer_norm.padding = encoder_padding_mask
        return super().forward(x, encoder_padding_mask, *rest, **kwargs)


class Inputs(nn.Module):
    """Module that maps tokens (B, L) to the encoder's inputs (B, L, E), in place of token embeddings.

    Token embeddings are projected if their dimension is not E. With --pixels linear, pixel values are
    normalized by the mean and standard deviation in the data folder's metadata, and projected. Pairs of texts
    that are one input also have segment embeddings.
    """

    def __init__(self, args, task: FairseqTask):
        super().__init__()
        self.embedding_dim = width = args.encoder_embed_dim
        dictionary = task.source_dictionary
        self.padding_idx = dictionary.pad()
        self.end = dictionary.eos()
        self.specials = dictionary.nspecial
        self.pixels = task.about.get("pixels") if args.pixels == "linear" else None
        self.embedding = self.segments = None
        self.project = nn.Identity()
        if self.pixels:
            self.project = nn.Linear(1, width)
        else:
            self.embedding = Embedding(len(dictionary), args.encoder_input_dim, self.padding_idx)
            if args.encoder_input_dim != width:
                self.project = nn.Linear(args.encoder_input_dim, width)
        if task.joined:
            self.segments = nn.Embedding(2, width)
            nn.init.normal_(self.segments.weight, std=width**-0.5)

    def forward(self, tokens):
        if self.pixels:
            values = (tokens - self.specials).to(self.project.weight.dtype)
            return self.project((values[..., None] - self.pixels["mean"]) / self.pixels["std"])
        x = self.project(self.embedding(tokens))
        if self.segments is not None:
            x = x + self.segments(segment_ids(tokens, self.end))
        return x


class ClassifierEncoder(Encoder):
    """Encoder with the normalization that :class:`ClassifierConfig` selects."""

    def __init__(self, cfg, task, inputs):
        self.batch_norm = cfg.args.encoder_norm == "batch"
        super().__init__(cfg, task.source_dictionary, inputs)
        if self.batch_norm and self.layer_norm is not None:
            self.layer_norm = TokenBatchNorm(cfg.encoder.embed_dim)

    def build_encoder_layer(self, cfg):
        layer = BatchNormLayer if self.batch_norm else EncoderLayer
        return self.build_layer(layer, cfg, cfg.max_source_positions)

    def forward_scriptable(self, src_tokens, *rest, **kwargs):
        if self.batch_norm and self.layer_norm is not None:
            self.layer_norm.padding = mask_if_padded(padding_mask(src_tokens, self.padding_idx))
        return super().forward_scriptable(src_tokens, *rest, **kwargs)


class ClassifierModel(BaseFairseqModel):
    """Classifier of the pooled encoder output.

    If ``apart``, inputs are pairs of texts that are encoded separately. Their pooled outputs a and b are
    classified as [a, b, a − b, a ∗ b].
    """

    def __init__(self, encoder, pooling: str, apart: bool, classes: int):
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        width = encoder.embed_tokens.embedding_dim
        self.head = nn.Linear(width, classes)
        if apart:
            self.head = nn.Sequential(nn.Linear(4 * width, width), nn.GELU(), self.head)

    @staticmethod
    def check(args):
        """Raises a UserError for invalid flags."""
        check_flag("encoder norm", args.encoder_norm, NORMS)
        check_flag("pixels", args.pixels, PIXELS)
        check_part(args, "encoder")

    @staticmethod
    def check_data(cfg, args):
        """Raises a UserError if inputs have special tokens, for which --pixels linear has no embeddings."""
        metadata = layout.read_metadata(Path(args.data))
        has_specials = args.pooling == "first" or is_joined(metadata, args.pairs)
        if "pixels" in metadata and cfg.pixels == "linear" and has_specials:
            raise UserError(
                "--pixels linear does not support the special tokens of --pooling first and --pairs joined: "
                "pass --pixels embedding, or --pooling mean and --pairs apart"
            )

    @classmethod
    def build_model(cls, args, task):
        with open_dict(args):  # fairseq sets attributes that have no flag here
            args.max_source_positions = task.max_positions()
            args.encoder_learned_pos = args.token_positions == "learned"
            args.no_token_positional_embeddings = args.token_positions == "none"
        encoder = ClassifierEncoder(transformer_config(args), task, Inputs(args, task))
        if args.init_std:
            init_normal(encoder, args.init_std)
        # Added afterwards, because the positions of this project have their own initialization.
        add_token_positions(encoder, args, encoder.max_source_positions)
        return cls(encoder, task.cfg.pooling, task.apart, len(task.labels))

    def pooled(self, tokens: Tensor) -> Tensor:
        """Returns the pooled encoder output (B, E) of tokens (B, L)."""
        out = self.encoder(tokens)
        x = out["encoder_out"][0]  # (L, B, E)
        padding = out["encoder_padding_mask"][0].T[..., None]  # (L, B, 1)
        if self.pooling == "first":
            return x[0]
        if self.pooling == "max":
            return x.masked_fill(padding, -torch.inf).amax(0)
        total = x.masked_fill(padding, 0).sum(0, dtype=torch.promote_types(x.dtype, torch.float))
        return (total / (~padding).sum(0)).type_as(x)

    def forward(self, src_tokens, src_lengths=None, second_tokens=None, second_lengths=None) -> Tensor:
        """Returns the logits (B, classes) of texts (B, L), or of pairs of texts (B, L) and (B, L')."""
        x = self.pooled(src_tokens)
        if second_tokens is not None:
            y = self.pooled(second_tokens)
            x = torch.cat([x, y, x - y, x * y], dim=-1)
        return self.head(x)

    def set_dummy(self, is_dummy: bool) -> None:
        """Sets whether the next batches are dummy batches, which BatchNorm's statistics exclude."""
        for module in self.modules():
            if isinstance(module, TokenBatchNorm):
                module.is_dummy = is_dummy

    def max_positions(self):
        return self.encoder.max_positions()

    @torch.no_grad()
    def load_word_vectors(self, dictionary, path: Path) -> None:
        """Copies the vectors of a file in GloVe's format into the embeddings of their words.

        Raises:
            UserError: if the file is invalid or has none of the words, or if the model has no embeddings.
        """
        embedding = self.encoder.embed_tokens.embedding
        if embedding is None:
            raise UserError("--embed-path needs embeddings, which --pixels linear does not use: omit it")
        for word, vector, _ in word_vectors.read(path, dictionary.symbols[dictionary.nspecial :]):
            embedding.weight[dictionary.index(word)] = torch.from_numpy(vector)


register_family("classifier", ClassifierModel, ClassifierConfig)
