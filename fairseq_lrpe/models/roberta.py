"""Bidirectional language models, which are fairseq's RoBERTa with this plugin's self-attention."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from fairseq import utils
from fairseq.models.roberta import model as fairseq_roberta
from fairseq.modules import PositionalEmbedding
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from omegaconf import open_dict
from torch import Tensor

from fairseq_lrpe.config import ACTIVATIONS, LayerConfig, flag, layer_flags, with_defaults
from fairseq_lrpe.config_validation import check_part
from fairseq_lrpe.data.line_codec import byte_pair_folder
from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint
from fairseq_lrpe.fairseq_ext.masked_lm import selected
from fairseq_lrpe.models.encoder import Encoder
from fairseq_lrpe.models.layer_stacks import mask_if_padded, padding_mask
from fairseq_lrpe.models.layers import transformer_config
from fairseq_lrpe.models.register import register_family
from fairseq_lrpe.models.token_positions import add_token_positions
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY


@dataclass
class RobertaConfig(with_defaults(LayerConfig, token_positions="learned"), layer_flags("encoder")):
    """Flags of fairseq's RoBERTa, with the sizes of RoBERTa base by default.

    As in the public models of LRPE's authors (OpenNLPLab/fairseq-evo), encodings are combined with learned
    positions by default.
    """

    encoder_normalize_before: bool = flag(False, "apply layernorm before each block")
    layernorm_embedding: bool = flag(True, "apply layernorm to the embeddings")
    pooler_activation_fn: ACTIVATIONS = flag("tanh", "activation function of the classification heads")  # noqa: RUF009
    pooler_dropout: float = flag(0.0, "dropout probability in the classification heads")
    untie_weights_roberta: bool = flag(False, "do not share input and output embeddings")
    max_positions: Optional[int] = flag(None, "maximum length in tokens (default: the task's)")  # noqa: UP045
    load_checkpoint_heads: bool = flag(False, "load the classification heads of a checkpoint")
    spectral_norm_classification_head: bool = flag(False, "apply spectral norm to the classification heads")
    mha_reg_scale_factor: float = flag(0.0, "L1 penalty of attention projections for AdaPruning")
    ffn_reg_scale_factor: float = flag(0.0, "L1 penalty of feed-forward layers for AdaPruning")
    ffn_blocks_to_remove: int = flag(-1, "number of hidden features that AdaPruning removes (-1: none)")
    mask_decoder: bool = flag(
        False,
        "predict masked tokens by DeBERTa's enhanced mask decoder, which adds absolute positions to the "
        "queries of the last layer (requires --token-positions none)",
    )


class RobertaEncoder(fairseq_roberta.RobertaEncoder):
    """fairseq's RoBERTa encoder with the layers of :class:`Encoder`.

    With ``mask_decoder``, absolute positions enter only before the output layer, in DeBERTa's enhanced mask
    decoder (He et al. 2021, Sec. 3.2). As in its public code (microsoft/DeBERTa,
    DeBERTa/apps/models/masked_language_model.py), the last layer is applied twice instead of once: with the
    inputs H of the last layer and learned positions P, the features are

        layer(layer(H + P, H), H),

    where layer(Q, H) computes queries from Q, and keys and values from H. Other features, such as those of
    classification heads, are layer(H, H). The parameter ``positions`` is P. The time is that of two more
    layers, because layer(H, H) is computed as well.
    """

    def __init__(self, args, dictionary):
        self._layers = args.encoder_layers  # fairseq replaces it if --encoder-layers-to-keep is given
        super().__init__(args, dictionary)
        self.positions = None
        if args.mask_decoder:
            size = args.max_positions, args.encoder_embed_dim, dictionary.pad()
            self.positions = PositionalEmbedding(*size, learned=True)

    def forward(
        self, src_tokens, features_only=False, return_all_hiddens=False, masked_tokens=None, **kwargs
    ):
        """Returns the logits, or the features (B, L, E) if ``features_only``, and a dict, as in fairseq."""
        if features_only or self.positions is None:
            return super().forward(src_tokens, features_only, return_all_hiddens, masked_tokens, **kwargs)
        extra = self.extract_features(src_tokens, return_all_hiddens=True)[1]
        states = extra["inner_states"][-2]
        if not return_all_hiddens:
            extra = {"inner_states": None}  # frees what the backward pass of layer(H, H) would need
        return self.output_layer(self.decode_masks(src_tokens, states), masked_tokens), extra

    def output_layer(self, features, masked_tokens=None, **_):
        """Returns the logits of features (B, L, E), or only those where ``masked_tokens`` (B, L) is True."""
        return self.lm_head(features if masked_tokens is None else selected(features, masked_tokens))

    def decode_masks(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Returns the features (B, L, E) of the mask decoder for the inputs (L, B, E) of the last layer."""
        encoder = self.sentence_encoder
        padding = mask_if_padded(padding_mask(tokens, self.dictionary.pad()))
        queries = states + self.positions(tokens).transpose(0, 1)
        for _ in range(2):
            queries = encoder.layers[-1](queries, padding, keys=states)
        if encoder.layer_norm is not None:
            queries = encoder.layer_norm(queries)
        return queries.transpose(0, 1)

    def build_encoder(self, args, dictionary, embed_tokens):
        args.encoder_layers = self._layers
        return Encoder(transformer_config(args), dictionary, embed_tokens).apply(init_bert_params)


class RobertaModel(fairseq_roberta.RobertaModel):
    """RoBERTa with the attention and positions that :class:`RobertaConfig` selects."""

    @staticmethod
    def check(args):
        """Raises a UserError for invalid flags."""
        check_part(args, "encoder")
        if args.mask_decoder and args.token_positions != "none":
            raise UserError(
                "--mask-decoder adds absolute positions only after the encoder, but --token-positions is "
                f"{args.token_positions}: pass --token-positions none"
            )
        if args.mask_decoder and args.encoder_layerdrop:
            raise UserError("--mask-decoder needs the last layer, which --encoder-layerdrop drops: omit one")

    def __init__(self, args, encoder):
        super().__init__(args, encoder)
        # Positions are added after fairseq has initialized all layers, because they have their own
        # initialization.
        add_token_positions(encoder.sentence_encoder, args, encoder.sentence_encoder.max_source_positions)

    @classmethod
    def build_model(cls, args, task):
        with open_dict(args):  # fairseq sets attributes that have no flag here
            args.max_positions = args.max_positions or task.max_positions()
            args.encoder_learned_pos = args.token_positions == "learned"
            args.no_token_positional_embeddings = args.token_positions == "none"
            return cls(args, RobertaEncoder(args, task.source_dictionary))

    @classmethod
    def from_pretrained(
        cls, folder, checkpoint_file="checkpoint_best.pt", data=None, bpe="gpt2", **overrides
    ):
        """Loads a checkpoint and returns fairseq's hub interface for inference.

        The hub interface encodes text, fills masks, extracts features and predicts labels.

        Args:
            folder: folder of the checkpoint.
            checkpoint_file: name of the checkpoint.
            data: data folder (default: the one on which the model was trained).
            bpe: value of fairseq's --bpe. The files of "gpt2" are read from a folder ``gpt2_bpe`` next to the
                data folder or one of its parents, if it exists.
            **overrides: settings that replace those of the checkpoint.

        Raises:
            UserError: if the checkpoint cannot be read or its data folder does not exist.
        """
        if data is None:
            state = read_checkpoint(Path(folder, checkpoint_file), "pass a run's checkpoints folder")
            trained = state["cfg"]["task"]["data"]
            data = (REPOSITORY / utils.split_paths(trained)[0]).resolve()
            if not data.is_dir():
                raise UserError(
                    f"the data folder {data} that {checkpoint_file} was trained on does not exist: "
                    "pass data=FOLDER with a folder that has the same dict.txt"
                )
        data = Path(data).resolve()
        if bpe == "gpt2" and (folder_of_pairs := byte_pair_folder(data)):
            overrides.setdefault("gpt2_encoder_json", str(folder_of_pairs / "encoder.json"))
            overrides.setdefault("gpt2_vocab_bpe", str(folder_of_pairs / "vocab.bpe"))
        return super().from_pretrained(str(folder), checkpoint_file, str(data), bpe, **overrides).eval()


register_family("roberta", RobertaModel, RobertaConfig)
