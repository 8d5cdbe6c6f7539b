"""Perplexity at other lengths: which models can, and that the numbers are the models' own."""

import copy
import functools
import json
import math

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from tiny import run_command

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.experiments import extrapolate
from fairseq_lrpe.methods import ATTENTIONS, METHODS
from fairseq_lrpe.positions import POSITIONS

TRAINED, LONGER = 16, 48
ARCHS = [f"{a}_lm_{name}" for a in ATTENTIONS for name, m in METHODS.items() if a in m.attentions()]
FLAGS = [{"token_positions": name} for name in ("learned", "sinusoidal", "none", *POSITIONS)]
FLAGS += [{"encoding": "lrpe", "lrpe_theta_type": kind} for kind in "abc"]
FLAGS += [{**FLAGS[-1], "lrpe_learn_theta": True}, {**FLAGS[-1], "lrpe_core": "permutation"}]
FLAGS += [{"decoder_learned_pos": True}, {"no_token_positional_embeddings": True}]


@functools.cache
def settings():
    """fairseq's settings of everything but the model."""
    arguments = ["--task", "dummy_lm", "--dict-size", "40", "--arch", "linear_lm"]
    parser = options.get_training_parser(default_task="dummy_lm")
    arguments += ["--tokens-per-sample", str(TRAINED)]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def save_checkpoint(path, arch, flags):
    """A model as it is initialised, in fairseq's file format; its task."""
    sizes = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 32, "attention_heads": 4}
    sizes = {f"decoder_{name}": size for name, size in sizes.items()}
    cfg = copy.deepcopy(settings())
    cfg.model = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch](**sizes, **flags))
    cfg.model._name = arch
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    state = {"cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True), "model": model.state_dict()}
    state |= {"args": None, "optimizer_history": [{"num_updates": 1}], "extra_state": {}, "task_state": {}}
    state["optimizer_history"][0] |= {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}}
    torch.save(state, path)
    return task


@torch.no_grad()
def reads_longer(path, task):
    """Whether the checkpoint, built for LONGER, loads, is the same function up to TRAINED and goes on."""
    tokens = torch.randint(4, 40, (2, LONGER))
    outputs = []
    for overrides in ({}, {"max_target_positions": LONGER}):
        try:
            [model], _ = checkpoint_utils.load_model_ensemble([path], arg_overrides=overrides, task=task)
        except RuntimeError:  # a parameter has another size
            return False
        outputs.append(model.eval()(tokens[:, :TRAINED])[0])
    assert model.max_positions() >= LONGER
    return torch.allclose(*outputs, atol=1e-5) and bool(model(tokens)[0].isfinite().all())


@pytest.mark.parametrize(
    "arch, flags", [(arch, {}) for arch in ARCHS] + [("softmax_lm", flags) for flags in FLAGS]
)
def test_the_rule_is_what_the_models_do(arch, flags, tmp_path):
    path = tmp_path / "checkpoint.pt"
    task = save_checkpoint(path, arch, flags)
    limit, reason = extrapolate.longest(torch.load(path, weights_only=True)["cfg"]["model"])
    assert (limit > TRAINED) == reads_longer(str(path), task), reason
    assert limit >= TRAINED and reason


def test_methods_that_cannot():
    flags = {"decoder_learned_pos": False, "no_token_positional_embeddings": False, "tokens_per_sample": 512}
    flags |= {"max_target_positions": None, "token_positions": "sinusoidal", "lrpe_learn_theta": False}
    flags |= {"lrpe_core": "orthogonal", "lrpe_theta_type": "a", "encoding": "none"}
    limits = {name: extrapolate.longest(flags | method.flags)[0] for name, method in METHODS.items()}
    assert [name for name, limit in limits.items() if limit == 512] == ["cosformer"]
    assert [name for name, limit in limits.items() if limit == math.inf] == ["nope"]


# --- a trained run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "linear_tmlr_type1" / "seed-1"
    done = train("linear_lm_tmlr_type1", run / "checkpoints", "--max-update", 4)
    assert done.returncode == 0, done.stderr
    return run


@torch.no_grad()
def perplexity(path, data, length):
    """Of the test split in blocks of ``length``, each with the token before it as the first input."""
    task = tasks.setup_task(OmegaConf.create({"_name": "language_modeling", "data": str(data)}))
    overrides = {"max_target_positions": length}
    [model], _ = checkpoint_utils.load_model_ensemble([str(path)], arg_overrides=overrides, task=task)
    split = data_utils.load_indexed_dataset(str(data / "test"), task.dictionary)
    targets = torch.cat([split[i] for i in range(len(split))]).long()
    inputs = torch.cat([targets.new_tensor([task.dictionary.eos()]), targets[:-1]])
    loss = 0.0
    for start in range(0, len(targets), length):
        x, y = inputs[start : start + length], targets[start : start + length]
        scores = model.eval()(x[None])[0][0].log_softmax(-1)
        loss -= scores.gather(-1, y[:, None]).sum().item()
    return math.exp(loss / len(targets)), len(targets)


def test_perplexities_are_the_models_own(trained, data_bin, tmp_path):
    figure = tmp_path / "figure.png"
    flags = [trained, 96, 20, "--plot", figure]
    done = run_command("python", "-m", "fairseq_lrpe.experiments.extrapolate", *flags)
    assert done.returncode == 0, done.stderr
    result = json.loads((trained / "extrapolation.json").read_text())
    assert list(result["lengths"]) == ["20", "96"] and result["trained_length"] == 32
    for length, measured in result["lengths"].items():
        expected, tokens = perplexity(trained / "checkpoints/checkpoint_best.pt", data_bin, int(length))
        assert measured["perplexity"] == pytest.approx(expected, abs=0.006)
        assert measured["loss"] == pytest.approx(math.log2(expected), abs=6e-5)
        assert measured["tokens"] == tokens
        assert f" {measured['perplexity']:.2f} " in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG") and not list(trained.glob("*.part"))


def refused(run, *lengths):
    with pytest.raises(ValueError) as error:
        extrapolate.extrapolate(run, lengths)
    assert "\n" not in str(error.value)
    return str(error.value)


def altered(run, tmp_path, section, **values):
    """The run with other settings in its checkpoint."""
    state = torch.load(run / "checkpoints/checkpoint_best.pt", weights_only=True)
    state["cfg"][section].update(values)
    (tmp_path / "checkpoints").mkdir()
    torch.save(state, tmp_path / "checkpoints/checkpoint_best.pt")
    return tmp_path


def test_a_method_that_cannot_is_refused_before_work(trained, tmp_path):
    run = altered(trained, tmp_path, "model", encoding="cosformer")
    message = refused(run, 16, 64)
    assert "at most 32 tokens, not 64: cosformer's" in message
    assert [path.name for path in run.iterdir()] == ["checkpoints"]


def test_lengths_and_runs_that_cannot_be(trained, tmp_path):
    assert "at least 1, not 0" in refused(trained, 0)
    assert "too few for a block of 90,000" in refused(trained, 90_000)
    assert "at most 100,000 tokens, not 100,001" in refused(trained, 100_001)
    assert "does not exist" in refused(tmp_path / "none", 32)
    assert "no checkpoint_best.pt" in refused(tmp_path, 32)
    assert "has no test split" in refused(altered(trained, tmp_path, "task", data=str(tmp_path)), 32)
    (tmp_path / "checkpoints/checkpoint_best.pt").write_text("no checkpoint")
    assert "cannot be read" in refused(tmp_path, 32)


def test_the_command_answers_with_one_sentence(tmp_path):
    done = run_command("python", "-m", "fairseq_lrpe.experiments.extrapolate", tmp_path / "none", 32)
    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("extrapolate: the run folder")
