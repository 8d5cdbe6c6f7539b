"""Registers classifiers: our encoder's layers, and a vector of an input, or of a pair, that is classified."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch
import torch.nn.functional as F
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import Embedding, TransformerConfig
from fairseq.tasks import FairseqTask
from omegaconf import II, open_dict
from torch import Tensor, nn

from fairseq_lrpe import word_vectors
from fairseq_lrpe.config import PositionConfig, check_between, check_part, flag
from fairseq_lrpe.encodings import check_choice
from fairseq_lrpe.models.coders import ACTIVATIONS, Encoder, EncoderLayer, halves
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import place_tokens

NORMS = ("batch", "layer")
PIXELS = ("linear", "embedding")


@dataclass
class ClassifierConfig(PositionConfig):
    """Declares a classifier's flags with the defaults of Long-Range Arena's smaller tasks."""

    encoder_layers: int = flag(4, "encoder layers")
    encoder_embed_dim: int = flag(128, "encoder embedding dimension")
    encoder_ffn_embed_dim: int = flag(256, "embedding dimension of the feed-forward layers")
    encoder_attention_heads: int = flag(8, "attention heads")
    encoder_normalize_before: bool = flag(True, "normalize before each block, and at the end, not after it")
    encoder_norm: str = flag("batch", f"what normalizes: {', '.join(NORMS)}")
    encoder_input_dim: int = flag(
        II("model.encoder_embed_dim"), "width of the tokens' embeddings, which are projected if it is another"
    )
    # fairseq's parser knows no "str | None".
    embed_path: Optional[str] = flag(None, "file of word vectors to start from, in GloVe's format")  # noqa: UP045
    pixels: str = flag("linear", "a pixel is a number (linear) or one of 256 types (embedding)")
    layernorm_embedding: bool = flag(False, "apply layernorm to the embeddings")
    no_scale_embedding: bool = flag(False, "do not multiply embeddings by the root of the width")
    activation_fn: ACTIVATIONS = flag("gelu", "activation function of the feed-forward layers")  # noqa: RUF009
    dropout: float = flag(0.0, "dropout probability")
    attention_dropout: float = flag(0.0, "dropout probability of softmax attention's weights")
    activation_dropout: float = flag(0.0, "dropout probability inside the feed-forward layers")


class TokenBatchNorm(nn.BatchNorm1d):
    """Normalizes each feature over all tokens of a batch, (L, B, E), but for the padding.

    ``padding`` (B, L) is True at tokens that neither count nor get anything but 0; None is no padding. Sums
    and running statistics are in float32 under fp16 and bf16.
    """

    padding: Tensor | None = None

    def forward(self, x):
        if self.running_mean.dtype in (torch.half, torch.bfloat16):
            self.running_mean, self.running_var = self.running_mean.float(), self.running_var.float()
        if self.padding is None:
            return self._normalized(x.flatten(0, 1)).view_as(x)
        real = ~self.padding.T
        return torch.zeros_like(x).masked_scatter(real[..., None], self._normalized(x[real]))

    def _normalized(self, x):
        """(N, E) of real tokens; in evaluation and of a single token the running statistics are taken."""
        exact = x.to(torch.promote_types(x.dtype, self.running_mean.dtype))
        weight, bias = self.weight.to(exact.dtype), self.bias.to(exact.dtype)
        fresh = self.training and len(x) > 1
        statistics = self.running_mean, self.running_var, weight, bias
        return F.batch_norm(exact, *statistics, fresh, self.momentum, self.eps).type_as(x)


class BatchNormLayer(EncoderLayer):
    """An encoder layer whose norms are :class:`TokenBatchNorm`."""

    def __init__(self, *args):
        super().__init__(*args)
        self.self_attn_layer_norm, self.final_layer_norm = (TokenBatchNorm(self.embed_dim) for _ in range(2))

    def forward(self, x, encoder_padding_mask, *rest, **kwargs):
        self.self_attn_layer_norm.padding = self.final_layer_norm.padding = encoder_padding_mask
        return super().forward(x, encoder_padding_mask, *rest, **kwargs)


class Inputs(nn.Module):
    """Stands in for fairseq's embedding: tokens (B, L) -> (B, L, E).

    Tokens are looked up and, where their embeddings have another width, projected; the values of pixels, of
    which the task's folder says mean and deviation, go standardized through a linear layer instead. A pair
    that is one text has an embedding of each half as well.
    """

    def __init__(self, args, task: FairseqTask):
        super().__init__()
        self.embedding_dim = width = args.encoder_embed_dim
        dictionary = task.source_dictionary
        self.padding_idx, self.end, self.specials = dictionary.pad(), dictionary.eos(), dictionary.nspecial
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
            x = x + self.segments(halves(tokens, self.end))
        return x


class ClassifierEncoder(Encoder):
    """Makes fairseq's encoder with the norms of :class:`ClassifierConfig`."""

    def __init__(self, args, cfg, task, inputs):
        self.batch_norm = args.encoder_norm == "batch"
        super().__init__(args, cfg, task.source_dictionary, inputs)
        if self.batch_norm and self.layer_norm is not None:
            self.layer_norm = TokenBatchNorm(args.encoder_embed_dim)

    def build_encoder_layer(self, cfg):
        layer = BatchNormLayer if self.batch_norm else EncoderLayer
        return self.build_layer(layer, cfg, cfg.max_source_positions)

    def forward_scriptable(self, src_tokens, *rest, **kwargs):
        if self.batch_norm and self.layer_norm is not None:
            padding = src_tokens.eq(self.padding_idx)
            self.layer_norm.padding = padding if padding.any() else None
        return super().forward_scriptable(src_tokens, *rest, **kwargs)


class ClassifierModel(BaseFairseqModel):
    """Classifies a pooled vector of the encoder's output, or of a pair that is apart [a, b, a − b, a ∗ b]."""

    def __init__(self, encoder, pooling: str, apart: bool, classes: int):
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        width = encoder.embed_tokens.embedding_dim
        self.head = nn.Linear(width, classes)
        if apart:
            self.head = nn.Sequential(nn.Linear(4 * width, width), nn.GELU(), self.head)

    @staticmethod
    def check(args):
        """Refuses, by ValueError, flags that cannot be met."""
        check_choice("encoder norm", args.encoder_norm, NORMS)
        check_choice("pixels", args.pixels, PIXELS)
        check_between("encoder_input_dim", args.encoder_input_dim, 1)
        check_part(args, "encoder")

    @classmethod
    def build_model(cls, args, task):
        with open_dict(args):  # fairseq fills in what has no flag here
            args.max_source_positions = task.max_positions()
            args.encoder_learned_pos = args.token_positions == "learned"
            args.no_token_positional_embeddings = args.token_positions == "none"
        encoder = ClassifierEncoder(args, TransformerConfig.from_namespace(args), task, Inputs(args, task))
        place_tokens(encoder, args, encoder.max_source_positions)
        return cls(encoder, task.cfg.pooling, task.apart, len(task.labels))

    def vector(self, tokens: Tensor) -> Tensor:
        """Returns (B, E), what is classified, of tokens (B, L)."""
        found = self.encoder(tokens)
        x, padding = found["encoder_out"][0], found["encoder_padding_mask"][0].T[..., None]
        if self.pooling == "first":
            return x[0]
        if self.pooling == "max":
            return x.masked_fill(padding, -torch.inf).amax(0)
        total = x.masked_fill(padding, 0).sum(0, dtype=torch.promote_types(x.dtype, torch.float))
        return (total / (~padding).sum(0)).type_as(x)

    def forward(self, src_tokens, src_lengths=None, second_tokens=None, second_lengths=None) -> Tensor:
        """Returns the logits (B, classes) of tokens (B, L), or of pairs of them."""
        x = self.vector(src_tokens)
        if second_tokens is not None:
            y = self.vector(second_tokens)
            x = torch.cat([x, y, x - y, x * y], dim=-1)
        return self.head(x)

    def max_positions(self):
        return self.encoder.max_positions()

    def upgrade_state_dict_named(self, state_dict, name):
        """Ends the program where ``state_dict`` is of other inputs, or of another number of labels."""
        ours = self.state_dict()
        facts = [
            (inputs_of(x), len(x[max(key for key in x if key.startswith("head."))]))
            for x in (state_dict, ours)
        ]
        (theirs, labels), (here, needed) = facts
        if (theirs, labels) != (here, needed):
            differ = f"{theirs} with {labels:,} labels and the data has {here} with {needed:,}"
            raise SystemExit(
                f"fairseq_lrpe: the checkpoint is for {differ}: give the data that it was trained on"
            )
        super().upgrade_state_dict_named(state_dict, name)

    @torch.no_grad()
    def start_from_vectors(self, dictionary, path: Path) -> None:
        """Copies the vectors of a file into the embeddings of their words; other words keep theirs.

        ValueError where the file cannot be read, has vectors of another width or of no word, or where there
        are no embeddings.
        """
        embedding = self.encoder.embed_tokens.embedding
        if embedding is None:
            raise ValueError(f"--embed-path {path}: pixels that are numbers have no vectors: leave it out")
        found, width = word_vectors.width(path), embedding.embedding_dim
        if found != width:
            sizes = f"vectors of {found} numbers and the embeddings have {width}"
            raise ValueError(f"{path} has {sizes}: give --encoder-input-dim {found}, or other vectors")
        for word, vector, _ in word_vectors.read(path, dictionary.symbols[dictionary.nspecial :]):
            embedding.weight[dictionary.index(word)] = torch.from_numpy(vector)


def inputs_of(state_dict: dict) -> str:
    """Returns what a classifier with these parameters reads."""
    if "encoder.embed_tokens.segments.weight" in state_dict:
        return "joined pairs"
    return "pairs that are apart" if "head.0.weight" in state_dict else "single inputs"


register_family("classifier", ClassifierModel, ClassifierConfig)
