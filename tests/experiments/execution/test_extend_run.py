"""Extending a finished run: what it resumes from, and when it starts from scratch."""

import shutil

import pytest
import torch
from support.tiny import SMALL_LM, job_of, output_of, read

from fairseq_lrpe.cli import train
from fairseq_lrpe.experiments.execution import extend_run, run_directory
from fairseq_lrpe.experiments.execution.run_files import read_log
from fairseq_lrpe.experiments.execution.run_settings import run_settings

SMALL = [*SMALL_LM, "train.warmup_updates=4", "train.validate_interval_updates=4"]
SMALL += ["train.save_interval_updates=4", "train.log_interval=2", "evaluations.test=null"]
SHORT, LONG = "updates=8", "updates=24"


@pytest.fixture(scope="module")
def words(data_bin):
    return ["lm/mini", "rope", "--cpu", *SMALL, f"data={data_bin}"]


def run(words, results, *more):
    return output_of(train.main, *words, "--results", results, *more).splitlines()


def folder_in(results, updates):
    [folder] = results.rglob(f"{updates}/seed-1")
    return folder


def state(folder, name="checkpoint_last.pt"):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def validations(folder):
    entries = list(read_log(folder))
    return {e["valid_num_updates"]: e["valid_loss"] for e in entries if e["kind"] == "valid"}


@pytest.fixture(scope="module")
def extended(words, tmp_path_factory):
    """Returns (results, the shorter run's files before it was extended, the output)."""
    results = tmp_path_factory.mktemp("extended")
    run(words, results, SHORT)
    files = (path for path in folder_in(results, SHORT).rglob("*") if path.is_file() and path.name != "lock")
    before = {path: path.read_bytes() for path in files}
    return results, before, run(words, results, LONG)


def test_extended_run_equals_an_uninterrupted_one(extended, words, tmp_path):
    results, before, output = extended
    assert {path: path.read_bytes() for path in before} == before
    short, long = folder_in(results, SHORT), folder_in(results, LONG)
    assert f"extending: {long} resumes after the 8 updates of {short}" in output
    assert read(long, "run.json")["extended"] == {"from": str(short.relative_to(results)), "updates": 8}
    run(words, tmp_path, LONG)
    whole = folder_in(tmp_path, LONG)
    assert "extended" not in read(whole, "run.json")
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        ours, theirs = state(long, name), state(whole, name)
        assert ours["cfg"]["model"]["dropout"] == 0.1 and ours["cfg"]["optimization"]["max_update"] == 24
        torch.testing.assert_close(ours["model"], theirs["model"], rtol=0, atol=0)
    assert validations(long) == validations(whole) and min(validations(long)) == 4
    ours, theirs = (read(x)["evaluations"]["valid"] for x in (long, whole))
    assert ours == theirs


def test_interrupted_evaluation_of_an_extended_run_resumes(extended, words):
    results, _, _ = extended
    folder = folder_in(results, LONG)
    trained = folder / "checkpoints/checkpoint_last.pt"
    done, before = read(folder)["evaluations"], trained.stat().st_mtime_ns
    (folder / "evaluation.json").unlink()
    output = run(words, results, LONG)
    assert output[0] == f"resuming: {folder}" and not any(line.startswith("extending") for line in output)
    assert read(folder, "run.json")["extended"]["updates"] == 8 and trained.stat().st_mtime_ns == before
    assert read(folder)["evaluations"]["valid"] == done["valid"]


@pytest.fixture
def start(extended, words, tmp_path, capsys):
    """start(): the output of starting a run of 12 updates next to a copy of the shorter one."""
    short = folder_in(extended[0], SHORT)
    copied = tmp_path / short.relative_to(extended[0])
    shutil.copytree(short, copied)

    def start(overrides=(), seed=1, attention="linear"):
        overrides = [word for word in (*words, "updates=12", *overrides) if "=" in word]
        job = job_of("lm/mini", "rope", attention, overrides, seed, tmp_path)
        job.folder.mkdir(parents=True, exist_ok=True)
        extend_run.start(job, run_settings(job))
        return capsys.readouterr().out

    start.short = copied
    return start


@pytest.mark.parametrize("other", [
    {"seed": 2}, {"attention": "softmax"}, {"overrides": ["train.lr=1e-3"]}, {"overrides": ["updates=8"]},
])  # fmt: skip
def test_different_run_is_ignored(start, other):
    assert start(**other) == ""


@pytest.mark.parametrize("schedule, depends", [
    ({"_name": "cosine", "lr_period_updates": -1.0, "max_update": 8}, True),
    ({"_name": "cosine", "lr_period_updates": 40.0, "max_update": 8}, False),
    ({"_name": "polynomial_decay", "total_num_update": 8.0}, True),
    ({"_name": "polynomial_decay", "total_num_update": 100.0}, False),
    ({"_name": "tri_stage", "max_update": 8.0}, True),
    ({"_name": "fixed", "warmup_updates": 8}, False),  # set in the YAML
])  # fmt: skip
def test_schedule_that_depends_on_the_updates_starts_from_scratch(start, schedule, depends):
    path = start.short / "checkpoints/checkpoint_last.pt"
    torch.save(state(start.short) | {"cfg": {**state(start.short)["cfg"], "lr_scheduler": schedule}}, path)
    message = f"not extending a shorter run: in {start.short} the learning rate depends"
    assert start().startswith(message if depends else "extending: ")


@pytest.mark.parametrize("memory, iterations, empty", [
    ({"memory": "hidden", "memory_length": 8}, 4, False),
    ({"memory": "state", "memory_length": 0}, 4, False),
    ({"memory": "state", "memory_length": 0}, 0, True),  # the end of an epoch
    ({"memory": "hidden", "memory_length": 0}, 4, True),
])  # fmt: skip
def test_memory_that_the_checkpoint_lacks_starts_from_scratch(start, memory, iterations, empty):
    changed = state(start.short)
    changed["cfg"]["task"] |= {"_name": "memory_lm"} | memory
    changed["extra_state"]["train_iterator"]["iterations_in_epoch"] = iterations
    torch.save(changed, start.short / "checkpoints/checkpoint_last.pt")
    message = f"not extending a shorter run: {start.short} ends within an epoch"
    assert start().startswith("extending: " if empty else message)


def test_incomplete_shorter_run(start):
    last = start.short / "checkpoints/checkpoint_last.pt"
    whole = last.read_bytes()
    checkpoint = torch.load(last, weights_only=True)
    checkpoint["optimizer_history"][-1]["num_updates"] = 6
    torch.save(checkpoint, last)
    assert start() == f"not extending a shorter run: {start.short} has a checkpoint of 6 of its 8 updates\n"
    last.write_bytes(whole)
    with run_directory.locked(start.short):
        assert start().startswith(f"not extending a shorter run: {start.short} is in use")
    (start.short / "evaluation.json").write_text("{}")
    assert start() == ""
