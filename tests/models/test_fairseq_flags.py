"""The flags of fairseq's own models exist for our architectures, and have the same effect."""

import re
from argparse import ArgumentParser

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from tiny import REPOSITORY
from tiny_models import build_model, task_of

from fairseq_lrpe.methods import FAIRSEQ_ARCHITECTURES

LENGTHS = dict.fromkeys(("max_source_positions", "max_target_positions", "max_positions"), 24)
LENGTHS |= {"tokens_per_sample": 24, "add_bos_token": False, "tpu": False}
LENGTHS |= dict.fromkeys(("dropout", "attention_dropout"), 0.0)


def flags(arch):
    parser = ArgumentParser(allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def build(arch, **flags):
    torch.manual_seed(0)
    known = MODEL_DATACLASS_REGISTRY.get(arch)
    lengths = (
        LENGTHS if known is None else {x: LENGTHS[x] for x in LENGTHS if x in known.__dataclass_fields__}
    )
    return build_model(arch, task_of(), **lengths, **flags).double()


def outputs(model, tokens):
    return model(
        tokens, *([None, tokens] if hasattr(model, "decoder") and hasattr(model, "encoder") else [])
    )[0]


@pytest.mark.parametrize("family", FAIRSEQ_ARCHITECTURES)
def test_missing_flags_are_documented(family):
    page = (REPOSITORY / "docs/models.md").read_text()
    section = page.partition("## Models of fairseq")[2]
    missing = flags(FAIRSEQ_ARCHITECTURES[family]) - flags(f"softmax_{family}")
    assert missing <= set(re.findall(r"`(--[\w-]+)`", section))


PARTS = {"lm": ("decoder",), "roberta": ("encoder",), "transformer": ("encoder", "decoder")}
PARTS["question_generator"] = PARTS["transformer"]
every_family = pytest.mark.parametrize("family", PARTS)


@every_family
def test_recomputed_activations_change_nothing(family):
    tokens, results = torch.randint(4, 24, (2, 9)), []
    for flag in (None, "checkpoint_activations", "offload_activations"):
        model = build(f"linear_{family}_tmlr_type1", **{flag: True} if flag else {})
        out = outputs(model, tokens)
        out.square().sum().backward()
        results.append([out, *(p.grad for p in model.parameters() if p.grad is not None)])
        layers = [getattr(model, part) for part in PARTS[family]]
        layers = [getattr(part, "sentence_encoder", part).layers[0] for part in layers]
        assert all(("partial" in type(layer.forward).__name__) == bool(flag) for layer in layers)
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@every_family
def test_layerdrop_and_pruning(family):
    """Layers are dropped in training, and a pruned model has the kept ones, each with its own encoding."""
    tokens = torch.randint(4, 24, (2, 9))
    arch = f"softmax_{family}_lfhc"
    size = {f"{part}_layers": 4 for part in PARTS[family]}
    model = build(arch, **size, **{f"{part}_layerdrop": 0.5 for part in PARTS[family]})
    assert len({float(outputs(model, tokens).sum()) for _ in range(9)}) > 3
    keep = {f"{part}_layers_to_keep": "1,3" for part in PARTS[family]}
    pruned = build(arch, **size, **keep)
    pruned.load_state_dict(model.state_dict(), model_cfg=OmegaConf.create({"_name": arch, **keep}))
    for part in PARTS[family]:
        whole = getattr(model, part)
        whole = getattr(whole, "sentence_encoder", whole)
        whole.layers = torch.nn.ModuleList([whole.layers[1], whole.layers[3]])
    torch.testing.assert_close(outputs(pruned.eval(), tokens), outputs(model.eval(), tokens), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAIRSEQ_ARCHITECTURES)
def test_quantization_noise(family):
    noise = {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}
    ours = build(f"softmax_{family}_base", **noise)
    hooked = {name for name, module in ours.named_modules() if module._forward_pre_hooks}
    for part in PARTS[family]:
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            assert any(re.match(rf"{part}\..*layers\.1\.self_attn\.{projection}$", name) for name in hooked)
    tokens = torch.randint(4, 24, (2, 9))
    outputs(ours.train(), tokens).sum().backward()
    projection = dict(ours.named_modules())[next(name for name in hooked if name.endswith("q_proj"))]
    assert (projection.weight == 0).double().mean() > 0.02
