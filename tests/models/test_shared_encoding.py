"""Encodings that all layers share (TUPE): models, training and checkpoints."""

import copy
from types import SimpleNamespace

import pytest
import torch
from exact import assert_same
from fairseq_cli import eval_lm
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
every_method = pytest.mark.parametrize("method", ["tupe_a", "tupe_r"])


def build(family, method, **flags):
    """A small model in float64."""
    torch.manual_seed(0)
    task = task_of(cfg=SimpleNamespace(image_size=12), labels=range(5))
    sizes = {f"{part}_layers": 3 for part in PARTS.get(family, ("encoder",))}
    return build_model(f"softmax_{family}_{method}", task, **sizes, **SHAPES[family], **flags).double().eval()


def encodings(model):
    """The TUPE encodings of all layers."""
    found = [x.encoding for x in model.modules() if isinstance(x, FairseqSelfAttention)]
    return [encoding for encoding in found if encoding.name == "tupe"]


@every_method
@pytest.mark.parametrize(
    "family, modules, special",
    [
        ("lm", 1, [False]),
        ("roberta", 1, [True]),
        ("transformer", 2, [False, False]),
        ("question_generator", 1, [False]),
        ("vit", 1, [False]),
    ],
)
def test_one_module_per_part(family, modules, special, method):
    """Parameters count once, and only RoBERTa treats the first token separately."""
    model = build(family, method)
    found = encodings(model)
    single = list(dict.fromkeys(found))
    assert len(found) == 3 * modules and len(single) == modules
    assert [encoding.cls for encoding in single] == special
    own = sum(parameter.numel() for parameter in single[0].parameters())
    assert sum(x.numel() for x in model.parameters()) == modules * own + sum(
        x.numel() for name, x in model.named_parameters() if "self_attn.encoding" not in name
    )


@every_method
def test_copies_share_the_encoding(method):
    """fairseq's moving average copies models."""
    copied = encodings(copy.deepcopy(build("lm", method)))
    assert len(copied) == 3 and len(set(copied)) == 1


@every_method
def test_gradients_are_summed_over_layers(method):
    """The gradient is the sum of those of three separate modules with the same values."""
    model, tokens = build("lm", method), torch.randint(4, 24, (2, 20))
    apart = copy.deepcopy(model)
    for layer in apart.decoder.layers:
        layer.self_attn.encoding = copy.deepcopy(layer.self_attn.encoding)
    for each in (model, apart):
        each(tokens)[0].square().sum().backward()
    assert_same(model(tokens)[0], apart(tokens)[0])
    parts = [dict(encoding.named_parameters()) for encoding in encodings(apart)]
    for name, parameter in encodings(model)[0].named_parameters():
        assert_same(parameter.grad, sum(part[name].grad for part in parts), 1e-9)


@every_method
@pytest.mark.parametrize("family", ["roberta", "transformer"])
def test_activation_checkpointing_gives_same_gradients(family, method):
    plain = build(family, method)
    again = build(family, method, checkpoint_activations=True)
    again.load_state_dict(plain.state_dict())
    tokens = torch.randint(4, 24, (2, 20))
    inputs = (tokens, None, tokens) if family == "transformer" else (tokens,)
    for model in (plain, again):
        model(*inputs)[0].square().sum().backward()
    for ours, theirs in zip(encodings(plain)[0].parameters(), encodings(again)[0].parameters(), strict=True):
        assert_same(ours.grad, theirs.grad)


def read(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """A folder with a training of 6 updates."""
    folder = tmp_path_factory.mktemp("trained")
    done = train("softmax_lm_tupe_r", folder, *UPDATES, 6)
    assert done.returncode == 0, done.stderr
    return folder


UPDATES = (
    "--max-target-positions 40 --disable-validation --dropout 0.1 --no-epoch-checkpoints --max-update".split()
)
NAME = "decoder.layers.{}.self_attn.encoding.positions.weight"


def test_resumed_training_is_identical(trained, train, tmp_path):
    for updates in (3, 6):
        done = train("softmax_lm_tupe_r", tmp_path, *UPDATES, updates)
        assert done.returncode == 0, done.stderr
    whole, parts = read(trained)["model"], read(tmp_path)["model"]
    assert whole.keys() == parts.keys()
    assert all(whole[name].equal(parts[name]) for name in whole)
    assert whole[NAME.format(0)].equal(whole[NAME.format(1)])
    state = read(trained)["last_optimizer_state"]["state"]
    assert [x["exp_avg"].shape for x in state.values()].count((40, 32)) == 1  # updated once


def evaluate(trained, data, *flags):
    words = ["--path", trained / "checkpoint_last.pt", "--cpu", "--batch-size", 4, "--num-workers", 0, *flags]
    return run_here(eval_lm.cli_main, data, *words)


def test_an_evaluation(trained, data_bin):
    done = evaluate(trained, data_bin, "--tokens-per-sample", 32)
    assert done.returncode == 0, done.stderr


def test_larger_position_table_is_rejected(trained, train, data_bin, tmp_path):
    """For evaluation and for continued training."""
    message = "size mismatch for decoder.layers.0.self_attn.encoding.positions.weight"
    overrides = ["--model-overrides", "{'max_target_positions': 64}", "--tokens-per-sample", 64]
    more = ["--max-target-positions", 64, "--finetune-from-model", trained / "checkpoint_last.pt"]
    for done in (
        evaluate(trained, data_bin, *overrides),
        train("softmax_lm_tupe_r", tmp_path / "save", *UPDATES, 1, *more),
    ):
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode != 0 and message in last and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--ddp-backend fully_sharded", "fully_sharded would shard in each layer: use another backend"),
        (
            "--checkpoint-activations --distributed-world-size 2 --distributed-init-method env://",
            "--ddp-backend pytorch_ddp does not support with --checkpoint-activations: pass --ddp",
        ),
    ],
)
def test_unsupported_distributed_training(flags, message, train, tmp_path):
    done = train("softmax_lm_tupe_a", tmp_path / "save", *UPDATES, 1, *flags.split())
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("fairseq_lrpe: all layers share the encoding tupe, which") and message in last
    assert done.returncode != 0 and "Traceback" not in done.stderr and not (tmp_path / "save").exists()
