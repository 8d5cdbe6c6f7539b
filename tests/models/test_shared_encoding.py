"""An encoding that is one module for all layers: TUPE, in models that are built, trained and read again."""

import copy
from types import SimpleNamespace

import pytest
import torch
from exact import assert_same
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq_cli import eval_lm
from omegaconf import OmegaConf
from tiny import run_here

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.attention import SelfAttention

SIZES = {"layers": 3, "embed_dim": 32, "ffn_embed_dim": 48, "attention_heads": 4}
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
    dictionary = Dictionary()
    for i in range(20):
        dictionary.add_symbol(f"w{i}")
    arch = f"softmax_{family}_{method}"
    config = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    sizes = {f"{part}_{name}": x for part in ("encoder", "decoder") for name, x in SIZES.items()}
    for name, value in {**sizes, **SHAPES[family], **flags}.items():
        if name in config:
            setattr(config, name, value)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    task.cfg, task.labels = SimpleNamespace(image_size=12), range(5)
    torch.manual_seed(0)
    model = ARCH_MODEL_REGISTRY[arch].build_model(OmegaConf.create({"model": config}).model, task)
    return model.double().eval()


def encodings(model):
    """Those of the model's layers, in the parts that have one."""
    found = [x.encoding for x in model.modules() if isinstance(x, SelfAttention)]
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
def test_one_module_for_each_part(family, modules, special, method):
    """Counted once, and of a first token that is a special one in RoBERTa alone."""
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
def test_a_copy_shares_as_well(method):
    """As fairseq's moving average of a model makes it."""
    copied = encodings(copy.deepcopy(build("lm", method)))
    assert len(copied) == 3 and len(set(copied)) == 1


@every_method
def test_gradients_of_all_layers_add_up(method):
    """They are what three modules with the same values would get together."""
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
def test_activations_that_are_computed_again_give_the_same_gradients(family, method):
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


UPDATES = [
    "--max-target-positions",
    40,
    "--disable-validation",
    "--dropout",
    0.1,
    "--no-epoch-checkpoints",
    "--max-update",
]
NAME = "decoder.layers.{}.self_attn.encoding.positions.weight"


def test_a_training_goes_on_bit_for_bit(trained, train, tmp_path):
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


def test_a_longer_table_than_that_of_training_is_refused(trained, train, data_bin, tmp_path):
    """Where a model of other positions reads the checkpoint, in an evaluation or to go on from it."""
    message = (
        "has 40 positions in attention and the model 64: give the --max-target-positions of its training"
    )
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
        ("--ddp-backend fully_sharded", "fully_sharded would shard in each of them: give another backend"),
        (
            "--checkpoint-activations --distributed-world-size 2 --distributed-init-method env://",
            "--ddp-backend pytorch_ddp does not take beside --checkpoint-activations: give --ddp-backend leg",
        ),
    ],
)
def test_several_processes_that_cannot_share(flags, message, train, tmp_path):
    done = train("softmax_lm_tupe_a", tmp_path / "save", *UPDATES, 1, *flags.split())
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("fairseq_lrpe: all layers share one tupe, which") and message in last
    assert done.returncode != 0 and "Traceback" not in done.stderr and not (tmp_path / "save").exists()
