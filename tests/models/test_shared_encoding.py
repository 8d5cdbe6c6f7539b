"""Encodings that all layers share (TUPE): models, training and checkpoints."""

import copy
from types import SimpleNamespace

import pytest
import torch
from commands import assert_error, assert_resumes, load_last_checkpoint
from fairseq_cli import eval_lm
from tensors import assert_same
from tiny import run_here
from tiny_models import build_model, task_of

from fairseq_lrpe.attention.fairseq_adapter import FairseqSelfAttention

BOTH = ("encoder", "decoder")
PARTS = {"lm": ("decoder",), "transformer": BOTH, "question_generator": BOTH}
SHAPES = {
    "lm": {"tokens_per_sample": 24, "max_target_positions": 24, "add_bos_token": False, "tpu": False},
    "roberta": {"max_positions": 24},
    "transformer": {"max_source_positions": 24, "max_target_positions": 24},
    "question_generator": {"max_source_positions": 24, "max_target_positions": 24},
    "vit": {"patch_size": 4},
}


def build(family, **flags):
    """A small model in float64."""
    torch.manual_seed(0)
    task = task_of(cfg=SimpleNamespace(image_size=12), labels=range(5))
    sizes = {f"{part}_layers": 3 for part in PARTS.get(family, ("encoder",))}
    return build_model(f"softmax_{family}_tupe_r", task, **sizes, **SHAPES[family], **flags).double().eval()


def encodings(model):
    """The TUPE encodings of all layers."""
    found = [x.encoding for x in model.modules() if isinstance(x, FairseqSelfAttention)]
    return [encoding for encoding in found if encoding.name == "tupe"]


@pytest.mark.parametrize("family, modules, special", [
    ("lm", 1, [False]),
    ("roberta", 1, [True]),
    ("transformer", 2, [False, False]),
    ("question_generator", 1, [False]),
    ("vit", 1, [False]),
])  # fmt: skip
def test_one_module_per_part(family, modules, special):
    """Parameters are counted once, and only RoBERTa treats the first token separately."""
    model = build(family)
    found = encodings(model)
    single = list(dict.fromkeys(found))
    assert len(found) == 3 * modules and len(single) == modules
    assert [encoding.cls for encoding in single] == special
    own = sum(parameter.numel() for parameter in single[0].parameters())
    assert sum(x.numel() for x in model.parameters()) == modules * own + sum(
        x.numel() for name, x in model.named_parameters() if "self_attn.encoding" not in name
    )


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


@pytest.mark.parametrize("family", ["roberta", "transformer"])
def test_activation_checkpointing_gives_same_gradients(family):
    plain = build(family)
    again = build(family, checkpoint_activations=True)
    again.load_state_dict(plain.state_dict())
    tokens = torch.randint(4, 24, (2, 20))
    inputs = (tokens, None, tokens) if family == "transformer" else (tokens,)
    for model in (plain, again):
        model(*inputs)[0].square().sum().backward()
    for ours, theirs in zip(encodings(plain)[0].parameters(), encodings(again)[0].parameters(), strict=True):
        assert_same(ours.grad, theirs.grad)


UPDATES = "--max-target-positions 40 --disable-validation --dropout 0.1 --no-epoch-checkpoints".split()
NAME = "decoder.layers.{}.self_attn.encoding.positions.weight"


def test_training(train, data_bin, tmp_path):
    """Resumed training is identical, the shared table is updated once, and a larger one is rejected."""

    def run(save, *flags):
        return train("softmax_lm_tupe_r", save, *UPDATES, *flags)

    assert_resumes(run, tmp_path, (3, 6))
    state = load_last_checkpoint(tmp_path / "uninterrupted")
    assert state["model"][NAME.format(0)].equal(state["model"][NAME.format(1)])
    moments = state["last_optimizer_state"]["state"].values()
    assert [x["exp_avg"].shape for x in moments].count((40, 32)) == 1

    checkpoint = tmp_path / "uninterrupted/checkpoint_last.pt"
    words = [data_bin, "--path", checkpoint, "--cpu", "--batch-size", 4, "--num-workers", 0]
    done = run_here(eval_lm.cli_main, *words, "--tokens-per-sample", 32)
    assert done.returncode == 0, done.stderr
    overrides = ["--model-overrides", "{'max_target_positions': 64}", "--tokens-per-sample", 64]
    finetuned = run(tmp_path / "more", "--max-target-positions", 64, "--finetune-from-model", checkpoint)
    for done in (run_here(eval_lm.cli_main, *words, *overrides), finetuned):
        assert_error(done, "size mismatch for decoder.layers.0.self_attn.encoding.positions.weight")
