"""Tiny models of every model family, built without fairseq's tasks."""

from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.methods import METHODS

SIZES = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 48, "attention_heads": 4}
BOS, PAD, EOS, UNK = range(4)
REPRESENTATIVES = (
    "nope rope tmlr_type1 tmlr_type3 t5 shaw_values cope path selective_rope_fox tupe_r roper".split()
)
"""Methods with one example of each way in which an encoding takes part in a model."""
ONE_PER_ENCODING = {method.encoding: name for name, method in reversed(METHODS.items())}.values()
"""The first method of each encoding."""


def architectures(family, methods=REPRESENTATIVES, bidirectional=False):
    return [
        f"{attention}_{family}_{name}"
        for name in methods
        for attention in METHODS[name].attentions()
        if ENCODINGS[METHODS[name].encoding].bidirectional or not bidirectional
    ]


def dictionary_of(types=24, prefix="w"):
    dictionary = Dictionary()
    for i in range(types - 4):
        dictionary.add_symbol(f"{prefix}{i}")
    return dictionary


def task_of(dictionary=None, target=None, **attributes):
    dictionary = dictionary or dictionary_of()
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=target or dictionary, **attributes)


def build_small(arch, types=24, **flags):
    """Builds a model of any family for texts of 24 tokens, or images of 12 × 12 pixels with 5 labels."""
    cfg = SimpleNamespace(image_size=12, pooling="mean")
    about = {"cfg": cfg, "labels": range(5), "about": {}, "joined": False, "apart": False}
    task = task_of(dictionary_of(types), **about, max_positions=lambda: 24)
    lengths = dict.fromkeys(("max_source_positions", "max_target_positions", "max_positions"), 24)
    lengths |= {"tokens_per_sample": 24, "add_bos_token": False, "tpu": False, "patch_size": 4}
    known = lengths.keys() & MODEL_DATACLASS_REGISTRY[arch].__dataclass_fields__
    return build_model(arch, task, **{name: lengths[name] for name in known} | flags)


def build_model(arch, task, **flags):
    config = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    sizes = {f"{part}_{name}": x for part in ("encoder", "decoder") for name, x in SIZES.items()}
    for name, value in {**sizes, **flags}.items():
        if name in flags or name in config:
            setattr(config, name, value)
    return ARCH_MODEL_REGISTRY[arch].build_model(OmegaConf.create({"model": config}).model, task)


def check_decoding(decoder, tokens, whole, prefix):
    """Asserts that decoding token by token after a prefix gives ``whole``, the output of a single call.

    As in beam search, rows are reordered between some of the steps, and before the first one.
    """
    state, order = {}, torch.arange(len(tokens)).roll(1)
    for length in range(prefix, tokens.size(1) + 1):
        if length % 3 == prefix % 3:
            decoder.reorder_incremental_state_scripting(state, order)
            tokens, whole = tokens[order], whole[order]
        out = decoder(tokens[:, :length], incremental_state=state)[0]
        torch.testing.assert_close(out, whole[:, length - 1 : length], rtol=0, atol=1e-10)
