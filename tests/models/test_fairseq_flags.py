"""The flags of fairseq's own models exist for our architectures, and have the same effect."""

import re
from argparse import ArgumentParser
from collections import Counter

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from support.tiny import REPOSITORY
from support.tiny_models import build_small

from fairseq_lrpe.methods import FAIRSEQ_ARCHITECTURES


def flags(arch):
    parser = ArgumentParser(allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def build(arch, **flags):
    torch.manual_seed(0)
    return build_small(arch, dropout=0.0, attention_dropout=0.0, **flags).double()


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


@pytest.mark.parametrize("method", ["linear_{}_tmlr_type1", "softmax_{}_tupe_r"])
@every_family
def test_recomputed_activations_change_nothing(family, method):
    tokens, results = torch.randint(4, 24, (2, 9)), []
    for flag in (None, "checkpoint_activations", "offload_activations"):
        model = build(method.format(family), **{flag: True} if flag else {})
        layers = [getattr(model, part) for part in PARTS[family]]
        layers = [getattr(part, "sentence_encoder", part).layers[0] for part in layers]
        calls = Counter()
        for layer in layers:
            layer.fc1.register_forward_hook(lambda module, *_, calls=calls: calls.update([module]))
        out = outputs(model, tokens)
        out.square().sum().backward()
        results.append([out, *(p.grad for p in model.parameters() if p.grad is not None)])
        assert list(calls.values()) == [2 if flag else 1] * len(layers)
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@every_family
def test_layerdrop_and_pruning(family):
    """Layers are dropped in training, and a pruned model has the kept ones with their encodings."""
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
