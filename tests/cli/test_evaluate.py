"""The command `lrpe evaluate`: perplexity at other lengths, recorded in the run folder."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.data import data_utils
from omegaconf import OmegaConf
from support.tiny import SMALL_LM, output_of, read, run_here

import fairseq_lrpe.models  # noqa: F401
from fairseq_lrpe.cli import evaluate, train
from fairseq_lrpe.cli.evaluate import evaluate_lengths, load_evaluator
from fairseq_lrpe.encodings.rotation import scale_rotations
from fairseq_lrpe.ops.rope_scaling import RopeScaling

SMALL = [*SMALL_LM, "updates=4", "train.warmup_updates=2"]
SMALL += ["train.validate_interval_updates=4", "train.save_interval_updates=4"]


@pytest.fixture(scope="module")
def small(data_bin, tmp_path_factory):
    """Returns the arguments of a tiny run without evaluations."""
    words = ["--cpu", "--results", tmp_path_factory.mktemp("results"), f"data={data_bin}"]
    words += ["evaluations.valid=null", "evaluations.test=null"]
    return ["lm/mini", "tmlr_type1", *words, *SMALL]


@pytest.fixture(scope="module")
def trained(small):
    output = output_of(train.main, *small)
    assert "fairseq-train" in output
    return Path(output.splitlines()[-1].removeprefix("finished: "))


@torch.no_grad()
def perplexity(path, data, length, window=0, scaling=None):
    """Returns the perplexity of the test split in blocks of ``length`` after ``window`` tokens of context."""
    task = tasks.setup_task(OmegaConf.create({"_name": "language_modeling", "data": str(data)}))
    overrides = {"max_target_positions": length + window}
    [model], _ = checkpoint_utils.load_model_ensemble([str(path)], arg_overrides=overrides, task=task)
    scale_rotations(model, scaling)
    split = data_utils.load_indexed_dataset(str(data / "test"), task.dictionary)
    targets = torch.cat([split[i] for i in range(len(split))]).long()
    inputs = torch.cat([targets.new_tensor([task.dictionary.eos()]), targets[:-1]])
    loss = 0.0
    for start in range(0, len(targets), length):
        x, y = inputs[max(0, start - window) : start + length], targets[start : start + length]
        scores = model.eval()(x[None])[0][0].log_softmax(-1)[-len(y) :]
        loss -= scores.gather(-1, y[:, None]).sum().item()
    return math.exp(loss / len(targets)), len(targets)


@pytest.fixture(scope="module")
def measured(trained, tmp_path_factory):
    """Returns (output, figure) for two lengths."""
    figure = tmp_path_factory.mktemp("figure") / "figure.png"
    return output_of(evaluate.main, trained, 96, 20, "--plot", figure), figure


def test_perplexity_matches_the_model(trained, measured, data_bin):
    output, figure = measured
    assert output.startswith(f"{trained}, checkpoint_best.pt, trained on blocks of 32 tokens")
    found = {name: of for name, of in read(trained)["evaluations"].items() if name != "training"}
    assert list(found) == ["test_20", "test_96"]
    for length in (20, 96):
        of = found[f"test_{length}"]
        expected, tokens = perplexity(trained / "checkpoints/checkpoint_best.pt", data_bin, length)
        assert of["settings"]["split"] == "test" and of["settings"]["length"] == length
        assert of["perplexity"] == pytest.approx(expected, abs=0.006)
        assert of["bits"] == pytest.approx(math.log2(expected), abs=6e-5)
        assert of["tokens"] == tokens
        assert f" {of['perplexity']:,.2f} " in output
    assert figure.read_bytes().startswith(b"\x89PNG") and not list(trained.rglob("*.part"))


def test_recorded_lengths_are_not_repeated(trained, measured):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    assert output_of(evaluate.main, trained, 20, 96) == measured[0]
    after = {path: path.stat().st_mtime_ns for path in before}
    assert {path.name for path in before if after[path] != before[path]} <= {"lock"}


def test_additional_evaluations_of_a_finished_run(trained, small, data_bin):
    """Nothing is trained. Each block of 12 tokens is predicted with 20 tokens of context."""
    path, before = trained / "checkpoints/checkpoint_best.pt", read(trained)["evaluations"]
    words = [*small, "evaluations.window={split: test, context_window: 20}"]
    words += ["evaluations.dynamic={split: test, length: 64, rope_scaling: dynamic}"]
    assert "fairseq-train" not in output_of(train.main, *words)
    after = read(trained)["evaluations"]
    window, dynamic = after["window"], after["dynamic"]
    assert after == {**before, "window": window, "dynamic": dynamic}
    assert (window["settings"]["context_window"], dynamic["settings"]["rope_scaling"]) == (20, "dynamic")
    expected, tokens = perplexity(path, data_bin, 12, window=20)
    assert window["perplexity"] == pytest.approx(expected, abs=0.006) and window["tokens"] == tokens
    expected, _ = perplexity(path, data_bin, 64, scaling=RopeScaling("dynamic", None, 32))
    assert dynamic["bits"] == pytest.approx(math.log2(expected), abs=6e-5)
    assert output_of(train.main, *small) == f"already finished: {trained}\n"
    assert read(trained)["evaluations"] == after


def test_checkpoint_is_read_once(trained, tmp_path, monkeypatch):
    """By this process, for all lengths; fairseq-eval-lm reads it for itself."""
    paths = []
    load = torch.load

    def counted(path, *args, **kwargs):
        paths.append(path)
        return load(path, *args, **kwargs)

    folder = copied(trained, tmp_path)
    monkeypatch.setattr(torch, "load", counted)
    output_of(evaluate.main, folder, 24, 48, "--rope-scaling", "linear")
    assert len(paths) == 1
    assert set(read(folder)["evaluations"]) > {"test_24_linear", "test_48_linear"}


def error_of(folder, *lengths, rope_scaling=None):
    with pytest.raises(ValueError) as error:
        evaluate_lengths(load_evaluator(folder, lengths, rope_scaling))
    assert "\n" not in str(error.value)
    return str(error.value)


def copied(run, to):
    """Copies the run to another results folder."""
    settings = read(run, "run.json")
    depth = len(settings["experiment"].split("/")) + len(settings["changes"]) + 2
    folder = to.joinpath(*run.parts[-depth:])
    shutil.copytree(run, folder)
    return folder


def altered(run, to, **values):
    """Copies the run and changes settings of the model in its checkpoint."""
    folder = copied(run, to)
    state = torch.load(folder / "checkpoints/checkpoint_best.pt", weights_only=True)
    state["cfg"]["model"].update(values)
    torch.save(state, folder / "checkpoints/checkpoint_best.pt")
    return folder


def test_moved_folder_is_evaluated(trained, tmp_path):
    """Another run in its former folder, or a missing YAML file, makes no difference."""
    other = copied(trained, tmp_path)
    moved = shutil.copytree(trained, other.with_name("seed-1-copy"))
    state = torch.load(moved / "checkpoints/checkpoint_best.pt", weights_only=True)
    state["model"]["decoder.embed_tokens.weight"].zero_()  # also the tied outputs: a uniform distribution
    torch.save(state, moved / "checkpoints/checkpoint_best.pt")
    settings = read(moved, "run.json")
    (moved / "run.json").write_text(json.dumps({**settings, "experiment": "lm/gone"}))
    before = read(other)
    assert output_of(evaluate.main, moved, 8).startswith(f"{moved}, ")
    assert read(moved)["evaluations"]["test_8"]["perplexity"] == 48 and (moved / "eval-test_8.log").exists()
    assert read(other) == before and not (other / "eval-test_8.log").exists()


def test_unsupported_length_is_rejected_first(trained, tmp_path):
    assert "too few for a block of 90,000" in error_of(trained, 90_000)
    folder = altered(trained, tmp_path, encoding="cosformer")
    before = sorted(path.name for path in folder.iterdir()), read(folder)
    assert "at most 32 tokens, not 64, because cosformer's" in error_of(folder, 16, 64)
    assert (sorted(path.name for path in folder.iterdir()), read(folder)) == before


@pytest.mark.parametrize("is_old", [False, True])
def test_scaled_rotations(trained, data_bin, tmp_path, is_old):
    """Checkpoints of earlier versions have no flag for it."""
    folder = copied(trained, tmp_path)
    path = folder / "checkpoints/checkpoint_best.pt"
    if is_old:
        state = torch.load(path, weights_only=True)
        assert state["cfg"]["model"].pop("rope_scaling") == ""
        torch.save(state, path)
    scaled = ["--rope-scaling", "yarn", "--plot", tmp_path / "plot.svg"]
    output = output_of(evaluate.main, folder, 96, 20, *scaled)
    found = read(folder)["evaluations"]
    for length, factor in ((20, 1), (96, 3)):
        of, scaling = found[f"test_{length}_yarn"], RopeScaling("yarn", factor, 32)
        expected, tokens = perplexity(path, data_bin, length, scaling=scaling)
        assert of["settings"]["rope_scaling"] == "yarn" and of["tokens"] == tokens
        assert of["perplexity"] == pytest.approx(expected, abs=0.006)
        assert of["bits"] == pytest.approx(math.log2(expected), abs=6e-5)
        assert f" yarn:{factor}:32 " in output and f" {of['perplexity']:,.2f} " in output
    assert abs(perplexity(path, data_bin, 96)[0] - expected) > 0.01
    assert "yarn scaling" in (tmp_path / "plot.svg").read_text()
    if not is_old:
        evaluator = load_evaluator(folder, [96], "ntk:8")
        of = evaluate_lengths(evaluator)[96]
        assert of == read(folder)["evaluations"]["test_96_ntk-8"]
        expected, _ = perplexity(path, data_bin, 96, scaling=RopeScaling("ntk", 8))
        assert of["bits"] == pytest.approx(math.log2(expected), abs=6e-5)


def test_invalid_scaling_is_rejected_first(trained, tmp_path):
    assert "unknown rope scaling 'yarm' (did you mean 'yarn'?)" in error_of(trained, 64, rope_scaling="yarm")
    folder = altered(trained, tmp_path, encoding="alibi")
    assert "alibi has no rotation angles" in error_of(folder, 64, rope_scaling="yarn")
    altered_core = altered(trained, tmp_path / "core", lrpe_core="permutation", lrpe_learn_theta=False)
    assert "lrpe has no rotation angles" in error_of(altered_core, 64, rope_scaling="yarn")
    assert not list(folder.glob("eval-*yarn*"))


@pytest.mark.parametrize("is_listed", [False, True])
def test_other_test_split_is_rejected(trained, measured, tmp_path, data_bin, is_listed):
    """Also if run.json does not list its files, because no evaluation of the YAML uses it."""
    folder = copied(trained, tmp_path)
    settings = read(folder, "run.json")
    data = shutil.copytree(data_bin, tmp_path / "data")
    for end in ("bin", "idx"):
        if is_listed:
            settings["data"][f"test.{end}"] = (data / f"test.{end}").stat().st_size
        shutil.copy(data / f"valid.{end}", data / f"test.{end}")
    settings["config"]["data"] = str(data)
    (folder / "run.json").write_text(json.dumps(settings))
    message = error_of(folder, 20, 64)
    assert f"{data} is not the data of the run" in message and "test split had" in message
    assert ("data.test.bin was" in message) == is_listed


def test_one_length_is_not_plotted(trained, tmp_path):
    folder = copied(trained, tmp_path)
    done = run_here(evaluate.main, folder, 20, "--plot", tmp_path / "figure.png")
    assert done.returncode and "--plot draws a line over lengths: pass two or more" in done.stderr
    assert not list(tmp_path.glob("*.png")) and read(folder) == read(trained)


def test_unfinished_run_is_rejected(trained, tmp_path):
    folder = copied(trained, tmp_path)
    (folder / "evaluation.json").write_text("{}")
    assert "is not finished: resume it with `lrpe train`" in error_of(folder, 32)


def test_names_of_evaluations_with_divisors():
    """They are names of files, and other divisors have another name."""
    texts = ["longrope:4:512:" + ",".join(["1.2345678"] * 128), "longrope:4:512:" + ",".join(["2.0"] * 128)]
    names = {name for text in texts for name in evaluate.length_evaluations([512], text)}
    assert len(names) == 2 and all(len(name) < 60 and "/" not in name for name in names)
    assert list(evaluate.length_evaluations([64], "yarn:4:512")) == ["test_64_yarn-4-512"]
