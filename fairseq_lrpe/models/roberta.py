"""Bidirectional language models: fairseq's RoBERTa with our self-attention."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq import utils
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.dataclass import ChoiceEnum
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import model as fairseq_roberta
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from omegaconf import open_dict

from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.models.coders import Encoder
from fairseq_lrpe.models.door import one_sentence
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.stamp import check_rows
from fairseq_lrpe.models.token_positions import place_tokens

ACTIVATIONS = ChoiceEnum(utils.get_available_activation_fns())
REPOSITORY = Path(__file__).resolve().parents[2]


def _flag(default, help):
    return field(default=default, metadata={"help": help})


@dataclass
class RobertaConfig(PositionConfig):
    """fairseq's RoBERTa flags with its defaults, which are RoBERTa base."""

    # RoBERTa's own; the authors' public models (OpenNLPLab/fairseq-evo) keep them beside every encoding.
    token_positions: str = field(
        default="learned", metadata={"help": "absolute positions of the token embeddings"}
    )
    encoder_layers: int = _flag(12, "encoder layers")
    encoder_embed_dim: int = _flag(768, "encoder embedding dimension")
    encoder_ffn_embed_dim: int = _flag(3072, "embedding dimension of the feed-forward layers")
    encoder_attention_heads: int = _flag(12, "attention heads")
    encoder_normalize_before: bool = _flag(False, "apply layernorm before each block, not after it")
    layernorm_embedding: bool = _flag(True, "apply layernorm to the embeddings")
    activation_fn: ACTIVATIONS = field(
        default="gelu", metadata={"help": "activation function of the feed-forward layers"}
    )
    pooler_activation_fn: ACTIVATIONS = field(
        default="tanh", metadata={"help": "activation function of the classification heads"}
    )
    dropout: float = _flag(0.1, "dropout probability")
    attention_dropout: float = _flag(0.1, "dropout probability of softmax attention's weights")
    activation_dropout: float = _flag(0.0, "dropout probability inside the feed-forward layers")
    pooler_dropout: float = _flag(0.0, "dropout probability in the classification heads")
    encoder_layerdrop: float = _flag(0.0, "probability to leave out a layer in training")
    untie_weights_roberta: bool = _flag(False, "give the output embeddings of its own")
    max_positions: Optional[int] = _flag(None, "the longest sequence (default: the task's)")  # noqa: UP045
    load_checkpoint_heads: bool = _flag(False, "register the classification heads that a checkpoint has")
    spectral_norm_classification_head: bool = _flag(False, "normalize the classification heads spectrally")
    checkpoint_activations: bool = _flag(False, "compute activations anew in the backward pass, for memory")


class RobertaEncoder(fairseq_roberta.RobertaEncoder):
    """fairseq's around :class:`Encoder`."""

    def build_encoder(self, args, dictionary, embed_tokens):
        cfg = TransformerConfig.from_namespace(args)
        return Encoder(args, cfg, dictionary, embed_tokens).apply(init_bert_params)


class RobertaModel(fairseq_roberta.RobertaModel):
    """RoBERTa whose attention and position are given by the flags of :class:`RobertaConfig`."""

    def __init__(self, args, encoder):
        super().__init__(args, encoder)
        # Last: fairseq initialises every layer as BERT's, and positions made of layers have their own start.
        place_tokens(encoder.sentence_encoder, args, encoder.sentence_encoder.max_source_positions)

    @classmethod
    def check(cls, cfg):
        encoding_from_config(
            cfg, embed_dim=cfg.encoder_embed_dim, num_heads=cfg.encoder_attention_heads, causal=False
        )

    @classmethod
    def add_args(cls, parser):
        """The flags of the dataclass; fairseq's RoBERTa still lists its own by hand."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    @classmethod
    def build_model(cls, args, task):
        with one_sentence():
            cls.check(args)
        with open_dict(args):  # fairseq fills in what has no flag here
            args.max_positions = args.max_positions or task.max_positions()
            args.encoder_learned_pos = args.token_positions == "learned"
            args.no_token_positional_embeddings = args.token_positions == "none"
            return cls(args, RobertaEncoder(args, task.source_dictionary))

    def upgrade_state_dict_named(self, state_dict, name):
        encoder = "encoder.sentence_encoder."
        types = "types in its vocabulary", "prepare the data with the dictionary of the checkpoint"
        check_rows(state_dict, name, f"{encoder}embed_tokens.weight", self, *types)
        positions = "learned positions", "give the --max-positions of the pretraining"
        check_rows(state_dict, name, f"{encoder}embed_positions.weight", self, *positions)
        super().upgrade_state_dict_named(state_dict, name)

    @classmethod
    def from_pretrained(
        cls, folder, checkpoint_file="checkpoint_best.pt", data=None, bpe="gpt2", **overrides
    ):
        """fairseq's interface to a checkpoint: encode text, fill masks, extract features, predict by a head.

        Without ``data``, the data folder that the checkpoint was trained on; GPT-2's byte pairs are those
        that data_prep left beside it, else fairseq downloads them.
        """
        if data is None:
            trained = load_checkpoint_to_cpu(str(Path(folder, checkpoint_file)))["cfg"]["task"]["data"]
            data = (REPOSITORY / utils.split_paths(trained)[0]).resolve()
            if not data.is_dir():
                raise ValueError(
                    f"the data folder {data} that {checkpoint_file} was trained on is not here: "
                    "give data=FOLDER, one with the same dict.txt"
                )
        data = Path(data).resolve()
        pairs = next(
            (p / "gpt2_bpe" for p in data.parents if (p / "gpt2_bpe" / "encoder.json").is_file()), None
        )
        if bpe == "gpt2" and pairs:
            files = {
                "gpt2_encoder_json": str(pairs / "encoder.json"),
                "gpt2_vocab_bpe": str(pairs / "vocab.bpe"),
            }
            overrides = {**files, **overrides}
        return super().from_pretrained(str(folder), checkpoint_file, str(data), bpe, **overrides).eval()


register_family("roberta", RobertaModel, RobertaConfig)
