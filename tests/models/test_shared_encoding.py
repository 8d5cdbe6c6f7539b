"""Encodings that all layers share (TUPE): models, training and checkpoints."""

import copy

import pytest
import torch
from support.commands import load_last_checkpoint
from support.tensors import assert_same
from support.tiny import succeeded
from support.tiny_models import build_small

from fairseq_lrpe.attention.fairseq_adapter import FairseqSelfAttention, SharedEncoding
from fairseq_lrpe.config import PositionConfig

BOTH = ("encoder", "decoder")
PARTS = {"lm": ("decoder",), "transformer": BOTH, "question_generator": BOTH}


def build(family, **flags):
    """A small model in float64."""
    torch.manual_seed(0)
    sizes = {f"{part}_layers": 3 for part in PARTS.get(family, ("encoder",))}
    return build_small(f"softmax_{family}_tupe_r", **sizes, **flags).double().eval()


def encodings(model):
    """The TUPE encodings of all layers."""
    found = [x.encoding for x in model.modules() if isinstance(x, FairseqSelfAttention)]
    return [encoding for encoding in found if encoding.name == "tupe"]


@pytest.mark.parametrize("name, is_shared", [("tupe", True), ("t5", False)])
def test_encodings_of_layers(name, is_shared):
    cfg = PositionConfig(attention="softmax", encoding=name)
    sizes = {"embed_dim": 16, "num_heads": 2, "causal": True, "layers": 3}
    encoding = SharedEncoding()
    layers = [encoding.for_layer(cfg, layer=layer, **sizes) for layer in (1, 2, 3)]
    assert [layer.name for layer in layers] == [name] * 3
    assert len({id(layer) for layer in layers}) == (1 if is_shared else 3)
    assert layers[0].layer == 1 and layers[2].layer == (1 if is_shared else 3)
    other = SharedEncoding().for_layer(cfg, layer=1, **sizes)
    assert other is not layers[0]


@pytest.mark.parametrize("family, modules, special", [
    ("lm", 1, [False]),
    ("roberta", 1, [True]),
    ("transformer", 2, [False, False]),
    ("question_generator", 1, [False]),
    ("vit", 1, [False]),
])  # fmt: skip
def test_one_module_per_part(family, modules, special):
    """Only RoBERTa treats the first token separately."""
    found = encodings(build(family))
    single = list(dict.fromkeys(found))
    assert len(found) == 3 * modules and len(single) == modules
    assert [encoding.cls for encoding in single] == special


def test_gradients_are_summed_over_layers():
    """The gradient is the sum of those of three separate modules with the same values."""
    model, tokens = build("lm"), torch.randint(4, 24, (2, 20))
    apart = copy.deepcopy(model)
    for layer in apart.decoder.layers:
        layer.self_attn.encoding = copy.deepcopy(layer.self_attn.encoding)
    for each in (model, apart):
        each(tokens)[0].square().sum().backward()
    assert_same(model(tokens)[0], apart(tokens)[0])
    parts = [dict(encoding.named_parameters()) for encoding in encodings(apart)]
    for name, parameter in encodings(model)[0].named_parameters():
        assert_same(parameter.grad, sum(part[name].grad for part in parts), 1e-9)


def test_training(train, tmp_path):
    """The shared table is updated once."""
    flags = "--max-target-positions 40 --disable-validation --max-update 3 --no-epoch-checkpoints".split()
    succeeded(train("softmax_lm_tupe_r", tmp_path, *flags))
    state, name = load_last_checkpoint(tmp_path), "decoder.layers.{}.self_attn.encoding.positions.weight"
    assert state["model"][name.format(0)].equal(state["model"][name.format(1)])
    moments = state["last_optimizer_state"]["state"].values()
    assert [x["exp_avg"].shape for x in moments].count((40, 32)) == 1
