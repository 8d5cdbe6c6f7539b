"""Reads BERT's weights, as Hugging Face's transformers publishes them, into an encoder of ours."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fairseq_lrpe import word_pieces

SCRATCH = "scratch"
"""Stands for no BERT: an encoder that starts at random."""
EMBEDDINGS = {"token_type_embeddings": "segments", "LayerNorm": "layernorm_embedding"}
LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
"""{a module of BERT's layer: the encoder's}"""
SIZES = {
    "num_hidden_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "intermediate_size": "encoder_ffn_embed_dim",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_act": "activation_fn",
}
"""{a setting of BERT's: the flag of ours}"""
WEIGHTS = "model*.safetensors", "pytorch_model*.bin"


def check(args, vocabulary: Path) -> None:
    """Refuses, by ValueError, an --encoder that cannot be read, or that fits neither flags nor vocabulary.

    Of a name on the hub only its configuration and its vocabulary are fetched.
    """
    name = args.encoder
    if name == SCRATCH:
        return
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(
            f"--encoder {name} needs the package transformers: run `pip install 'transformers<5'`"
        )
    folder = Path(name)
    if folder.is_dir():
        for wanted in (("config.json",), (word_pieces.VOCABULARY,), WEIGHTS):
            if not any(found for pattern in wanted for found in folder.glob(pattern)):
                what = " or ".join(wanted)
                raise ValueError(
                    f"--encoder {folder} has no {what}: give a folder of a BERT of transformers'"
                )
    elif name.count("/") > 1 or name.startswith((".", "/")):
        raise ValueError(
            f"--encoder {name}: there is no such folder: give one, or a name on Hugging Face's hub"
        )
    from transformers import BertConfig
    from transformers.utils import cached_file

    with readable(name):
        types = Path(cached_file(name, word_pieces.VOCABULARY))
        config = BertConfig.from_pretrained(name)
    check_sizes(config, args)
    if word_pieces.read_types(types) != word_pieces.read_types(vocabulary):
        raise ValueError(
            f"--encoder {name} has other types than {vocabulary}: prepare the data with its --bert"
        )


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Makes one sentence, a ValueError, of what transformers raises of a BERT that it cannot read."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"--encoder {name} is no BERT that can be read ({reason})") from None


def read(name: str):
    """Returns transformers' BertModel of a folder or of a name on the hub; ValueError if it is not whole."""
    from transformers import BertModel

    with readable(name):
        how = {"add_pooling_layer": False, "dtype": torch.float, "output_loading_info": True}
        model, found = BertModel.from_pretrained(name, **how)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"--encoder {name} lacks {len(missing)} of BERT's weights, {missing[0]} among them")
    return model


def check_sizes(config, args) -> None:
    """Refuses, by ValueError, flags in which the encoder differs from a BERT with this configuration."""
    theirs = {flag: getattr(config, setting) for setting, flag in SIZES.items()}
    differ = {flag: value for flag, value in theirs.items() if str(getattr(args, flag)) != str(value)}
    if differ:
        flags = " ".join(f"--{flag.replace('_', '-')} {value}" for flag, value in differ.items())
        raise ValueError(f"--encoder {args.encoder} has other sizes: give {flags}")
    most = config.max_position_embeddings
    if args.max_source_positions > most:
        raise ValueError(
            f"--encoder {args.encoder} knows {most} positions: give --max-source-positions {most}"
        )


@torch.no_grad()
def start(encoder, args, vocabulary: Path) -> None:
    """Copies the weights of --encoder into an encoder whose dictionary is of the types in ``vocabulary``.

    ValueError as of :func:`check` and :func:`read`.
    """
    check(args, vocabulary)
    bert, ids = read(args.encoder), word_pieces.bert_ids(vocabulary)
    theirs, ours = bert.state_dict(), dict(encoder.named_parameters())
    first = encoder.padding_idx + 1  # fairseq's first position
    places = ours.pop("embed_positions.weight")
    places[first:] = theirs["embeddings.position_embeddings.weight"][: len(places) - first]
    ours.pop("embed_tokens.weight").copy_(theirs["embeddings.word_embeddings.weight"][ids])
    modules = {mine: f"embeddings.{module}" for module, mine in EMBEDDINGS.items()}
    for i in range(bert.config.num_hidden_layers):
        modules |= {f"layers.{i}.{mine}": f"encoder.layer.{i}.{module}" for module, mine in LAYER.items()}
    for name, parameter in ours.items():
        module, _, kind = name.rpartition(".")
        parameter.copy_(theirs[f"{modules[module]}.{kind}"])
