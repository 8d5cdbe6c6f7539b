"""Initialization of an encoder from BERT's weights in the format of Hugging Face's transformers."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fairseq_lrpe.data import word_pieces
from fairseq_lrpe.utils.errors import UserError

SCRATCH = "scratch"  # value of --encoder for random initialization
EMBEDDINGS = {"token_type_embeddings": "segments", "LayerNorm": "layernorm_embedding"}
LAYER = {  # {module of a layer of BERT: the corresponding module of fairseq's encoder layer}
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
SIZES = {  # {attribute of transformers' BertConfig: the corresponding flag of our encoder}
    "num_hidden_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "intermediate_size": "encoder_ffn_embed_dim",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_act": "activation_fn",
}


def check(args, vocabulary: Path) -> None:
    """Raises a UserError if the BERT of --encoder cannot be read, or has other sizes or another vocabulary.

    For a model on the Hugging Face Hub, only the configuration and the vocabulary are downloaded.
    """
    name = args.encoder
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            f"--encoder {name} requires transformers: run `pip install 'transformers<5'` (extra [bert])"
        )
    from transformers import BertConfig
    from transformers.utils import cached_file

    with _readable(name):
        types = Path(cached_file(name, word_pieces.VOCABULARY))
        config = BertConfig.from_pretrained(name)
    different = {}
    for setting, flag in SIZES.items():
        size = getattr(config, setting)
        if str(getattr(args, flag)) != str(size):
            different[flag] = size
    limit = config.max_position_embeddings
    if args.max_source_positions > limit:
        different["max_source_positions"] = limit
    if different:
        flags = []
        for flag, size in different.items():
            flags.append(f"--{flag.replace('_', '-')} {size}")
        raise UserError(f"--encoder {name} has other sizes than the flags: pass {' '.join(flags)}")
    if word_pieces.read_types(types) != word_pieces.read_types(vocabulary):
        remedy = f"prepare the data with --bert {name}"
        raise UserError(f"--encoder {name} does not have the vocabulary {vocabulary}: {remedy}")


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Converts the errors that transformers raises for unreadable models to a UserError of one line."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        yield
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = f"({' '.join(str(error).split())}): try again, or pass another"
        raise UserError(f"--encoder {name} is not a readable BERT model {reason}") from None


def load_bert(name: str):
    """Returns the pretrained BertModel of a folder or of a name on the Hugging Face Hub."""
    from transformers import BertModel

    with _readable(name):
        options = {"add_pooling_layer": False, "output_loading_info": True}
        model, info = BertModel.from_pretrained(name, **options)
    if missing := sorted(info["missing_keys"]):
        wrong = f"lacks {len(missing)} of BERT's weights, such as {missing[0]}"
        raise UserError(f"--encoder {name} {wrong}: pass another model")
    return model


@torch.no_grad()
def initialize(encoder, args, vocabulary: Path) -> None:
    """Copies the weights of the BERT model ``args.encoder`` into the encoder of a question generator.

    Args:
        encoder: the encoder, whose parameters are overwritten.
        args: the flags of the model. ``args.encoder`` is a folder, or a name on the Hugging Face Hub, from
            which the weights are downloaded.
        vocabulary: the vocab.txt from which the encoder's dictionary was made.

    Raises:
        UserError: if the weights cannot be read or are incomplete, or if the sizes or the vocabulary differ
            from those of the encoder.
    """
    check(args, vocabulary)
    bert = load_bert(args.encoder)
    ids = word_pieces.bert_token_ids(vocabulary)
    theirs = bert.state_dict()
    ours = dict(encoder.named_parameters())
    first = encoder.padding_idx + 1  # fairseq's index of the first position
    positions = ours.pop("embed_positions.weight")
    positions[first:] = theirs["embeddings.position_embeddings.weight"][: len(positions) - first]
    ours.pop("embed_tokens.weight").copy_(theirs["embeddings.word_embeddings.weight"][ids])
    modules = {}  # {module of the encoder: module of BERT}
    for module, name in EMBEDDINGS.items():
        modules[name] = f"embeddings.{module}"
    for layer in range(bert.config.num_hidden_layers):
        for module, name in LAYER.items():
            modules[f"layers.{layer}.{name}"] = f"encoder.layer.{layer}.{module}"
    for name, parameter in ours.items():
        module, _, kind = name.rpartition(".")
        parameter.copy_(theirs[f"{modules[module]}.{kind}"])
