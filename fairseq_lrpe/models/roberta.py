"""Registers bidirectional language models: fairseq's RoBERTa with our self-attention."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Optional

from fairseq import utils
from fairseq.models.roberta import model as fairseq_roberta
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from omegaconf import open_dict

from fairseq_lrpe.checkpoint import read_checkpoint
from fairseq_lrpe.config import PositionConfig, check_part, flag
from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.models.coders import ACTIVATIONS, Encoder
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import place_tokens


@dataclass
class RobertaConfig(PositionConfig):
    """Declares fairseq's RoBERTa flags with its defaults, which are RoBERTa base."""

    # RoBERTa's own; the authors' public models (OpenNLPLab/fairseq-evo) keep them beside every encoding.
    token_positions: str = flag("learned", "absolute positions of the token embeddings")
    encoder_layers: int = flag(12, "encoder layers")
    encoder_embed_dim: int = flag(768, "encoder embedding dimension")
    encoder_ffn_embed_dim: int = flag(3072, "embedding dimension of the feed-forward layers")
    encoder_attention_heads: int = flag(12, "attention heads")
    encoder_normalize_before: bool = flag(False, "apply layernorm before each block, not after it")
    layernorm_embedding: bool = flag(True, "apply layernorm to the embeddings")
    activation_fn: ACTIVATIONS = flag("gelu", "activation function of the feed-forward layers")  # noqa: RUF009
    pooler_activation_fn: ACTIVATIONS = flag("tanh", "activation function of the classification heads")  # noqa: RUF009
    dropout: float = flag(0.1, "dropout probability")
    attention_dropout: float = flag(0.1, "dropout probability of softmax attention's weights")
    activation_dropout: float = flag(0.0, "dropout probability inside the feed-forward layers")
    pooler_dropout: float = flag(0.0, "dropout probability in the classification heads")
    encoder_layerdrop: float = flag(0.0, "probability to leave out a layer in training")
    untie_weights_roberta: bool = flag(False, "give the output embeddings of its own")
    max_positions: Optional[int] = flag(None, "the longest sequence (default: the task's)")  # noqa: UP045
    load_checkpoint_heads: bool = flag(False, "register the classification heads that a checkpoint has")
    spectral_norm_classification_head: bool = flag(False, "normalize the classification heads spectrally")
    checkpoint_activations: bool = flag(False, "compute activations anew in the backward pass, for memory")


class RobertaEncoder(fairseq_roberta.RobertaEncoder):
    """Puts :class:`Encoder` into fairseq's RoBERTa encoder."""

    def build_encoder(self, args, dictionary, embed_tokens):
        cfg = TransformerConfig.from_namespace(args)
        return Encoder(args, cfg, dictionary, embed_tokens).apply(init_bert_params)


class RobertaModel(fairseq_roberta.RobertaModel):
    """Builds a RoBERTa whose attention and position are given by the flags of :class:`RobertaConfig`."""

    check = staticmethod(partial(check_part, part="encoder"))

    def __init__(self, args, encoder):
        super().__init__(args, encoder)
        # Last: fairseq initialises every layer as BERT's, and positions made of layers have their own start.
        place_tokens(encoder.sentence_encoder, args, encoder.sentence_encoder.max_source_positions)

    @classmethod
    def build_model(cls, args, task):
        with open_dict(args):  # fairseq fills in what has no flag here
            args.max_positions = args.max_positions or task.max_positions()
            args.encoder_learned_pos = args.token_positions == "learned"
            args.no_token_positional_embeddings = args.token_positions == "none"
            return cls(args, RobertaEncoder(args, task.source_dictionary))

    @classmethod
    def from_pretrained(
        cls, folder, checkpoint_file="checkpoint_best.pt", data=None, bpe="gpt2", **overrides
    ):
        """Returns fairseq's interface to a checkpoint, which encodes text, fills masks, extracts features and
        predicts by a head.

        Without ``data``, it takes the data folder that the checkpoint was trained on; GPT-2's byte pairs are
        those that data_prep left beside it, else fairseq downloads them.
        """
        if data is None:
            state = read_checkpoint(Path(folder, checkpoint_file), "give a training's folder of checkpoints")
            trained = state["cfg"]["task"]["data"]
            data = (REPOSITORY / utils.split_paths(trained)[0]).resolve()
            if not data.is_dir():
                raise ValueError(
                    f"the data folder {data} that {checkpoint_file} was trained on is not here: "
                    "give data=FOLDER, one with the same dict.txt"
                )
        data = Path(data).resolve()
        pairs = [str(p / "gpt2_bpe") for p in data.parents if (p / "gpt2_bpe/encoder.json").is_file()]
        if bpe == "gpt2" and pairs:
            files = {"encoder_json": "encoder.json", "vocab_bpe": "vocab.bpe"}
            overrides = {f"gpt2_{part}": f"{pairs[0]}/{name}" for part, name in files.items()} | overrides
        return super().from_pretrained(str(folder), checkpoint_file, str(data), bpe, **overrides).eval()


register_family("roberta", RobertaModel, RobertaConfig)
