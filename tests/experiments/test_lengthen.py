"""Lengthening a finished run: what it goes on from, what it becomes, and when it starts anew."""

import fcntl
import json
import shutil

import pytest
import torch
from tiny import run_here

from fairseq_lrpe.experiments import lengthen, run_folder, train
from fairseq_lrpe.experiments.experiment import Experiment
from fairseq_lrpe.experiments.runner import Job, describe

SMALL = (
    "batch.total=4 batch.per_gpu=4 train.tokens_per_sample=32 train.decoder_layers=1 "
    "train.decoder_embed_dim=32 train.decoder_ffn_embed_dim=64 train.warmup_updates=4 "
    "train.validate_interval_updates=4 train.save_interval_updates=4 train.log_interval=2 "
    "evaluations.test=null"
).split()
SHORT, LONG = "updates=8", "updates=24"


@pytest.fixture(scope="module")
def words(data_bin):
    return ["lm/mini", "rope", "--cpu", *SMALL, f"data={data_bin}"]


def run(words, results, *more):
    done = run_here(train.main, *words, "--results", results, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def folder_in(results, updates):
    [folder] = results.rglob(f"{updates}/seed-1")
    return folder


def read(folder, name):
    return json.loads((folder / name).read_text())


def state(folder, name="checkpoint_last.pt"):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def validations(folder):
    entries = run_folder.read_lines(folder / "log.jsonl")
    return {e["valid_num_updates"]: e["valid_loss"] for e in entries if e["kind"] == "valid"}


@pytest.fixture(scope="module")
def lengthened(words, tmp_path_factory):
    """(results, the files of the shorter run before it was lengthened, what was said)."""
    results = tmp_path_factory.mktemp("lengthened")
    run(words, results, SHORT)
    files = (path for path in folder_in(results, SHORT).rglob("*") if path.is_file() and path.name != "lock")
    before = {path: path.read_bytes() for path in files}
    return results, before, run(words, results, LONG)


def test_it_is_the_run_that_it_would_have_been(lengthened, words, tmp_path):
    results, _, said = lengthened
    short, long = folder_in(results, SHORT), folder_in(results, LONG)
    assert f"lengthening: {short} had 8 updates, {long} goes on from there" in said
    assert read(long, "run.json")["lengthened"] == {"from": str(short), "updates": 8}
    run(words, tmp_path, LONG)
    whole = folder_in(tmp_path, LONG)
    assert "lengthened" not in read(whole, "run.json")
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        ours, theirs = state(long, name), state(whole, name)
        assert ours["cfg"]["model"]["dropout"] == 0.1 and ours["cfg"]["optimization"]["max_update"] == 24
        assert ours["model"].keys() == theirs["model"].keys()
        assert all(torch.equal(ours["model"][key], theirs["model"][key]) for key in ours["model"])
    assert validations(long) == validations(whole) and min(validations(long)) == 4
    ours, theirs = (read(x, "evaluation.json")["evaluations"]["valid"] for x in (long, whole))
    assert ours == theirs


def test_the_shorter_run_stays_whole_beside_it(lengthened):
    _, before, _ = lengthened
    assert {path: path.read_bytes() for path in before} == before


def test_a_lengthened_run_is_finished_like_others(lengthened, words):
    results, _, _ = lengthened
    assert run(words, results, LONG) == [f"finished before: {folder_in(results, LONG)}"]


def test_an_interrupted_lengthening_goes_on(lengthened, words):
    results, _, _ = lengthened
    folder = folder_in(results, LONG)
    done = (folder / "evaluation.json").read_text()
    (folder / "evaluation.json").unlink()
    said = run(words, results, LONG)
    assert said[0] == f"continuing: {folder}" and not any(line.startswith("lengthening") for line in said)
    assert read(folder, "run.json")["lengthened"]["updates"] == 8
    assert json.loads(done)["evaluations"]["valid"] == read(folder, "evaluation.json")["evaluations"]["valid"]


@pytest.fixture
def begin(lengthened, words, tmp_path, capsys):
    """begin(*flags): what is said when a run of 12 updates begins beside a copy of the shorter one."""
    short = folder_in(lengthened[0], SHORT)
    copied = tmp_path / short.relative_to(lengthened[0])
    shutil.copytree(short, copied)

    def begin(*more, overrides=(), seed=1, attention="linear"):
        overrides = [word for word in (*words, "updates=12", *overrides) if "=" in word]
        experiment = Experiment.load("lm/mini", overrides)
        [one] = experiment.runs(attention, "rope", [seed])
        job = Job(experiment, one, tmp_path, more=list(more))
        job.folder.mkdir(parents=True, exist_ok=True)
        lengthen.begin(job, describe(job))
        return capsys.readouterr().out

    begin.short = copied
    return begin


def test_the_longest_shorter_run_is_gone_on_from(begin):
    assert begin().startswith(f"lengthening: {begin.short} had 8 updates")
    assert begin() == ""  # it has begun


@pytest.mark.parametrize("other", [
    {"seed": 2}, {"attention": "softmax"}, {"overrides": ["train.lr=1e-3"]}, {"overrides": ["updates=8"]},
])  # fmt: skip
def test_another_run_is_no_beginning(begin, other):
    assert begin(**other) == ""


@pytest.mark.parametrize("schedule, follows", [
    ({"_name": "cosine", "lr_period_updates": -1.0, "max_update": 8}, True),
    ({"_name": "cosine", "lr_period_updates": 40.0, "max_update": 8}, False),
    ({"_name": "polynomial_decay", "total_num_update": 8.0}, True),
    ({"_name": "polynomial_decay", "total_num_update": 100.0}, False),
    ({"_name": "tri_stage", "max_update": 8.0}, True),
    ({"_name": "fixed", "warmup_updates": 8}, False),  # the YAML says these
])  # fmt: skip
def test_where_the_learning_rate_follows_from_the_updates_it_starts_anew(begin, schedule, follows):
    path = begin.short / "checkpoints/checkpoint_last.pt"
    torch.save(state(begin.short) | {"cfg": {**state(begin.short)["cfg"], "lr_scheduler": schedule}}, path)
    said = f"starting anew: in {begin.short} the learning rate ({schedule['_name']}) follows"
    assert begin().startswith(said if follows else "lengthening: ")


def test_these_are_what_fairseq_keeps_of_a_schedule():
    """The keys on which the test above is built."""
    from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY as known

    keys = {"cosine": "max_update", "tri_stage": "max_update", "polynomial_decay": "total_num_update"}
    for name, key in keys.items():
        assert getattr(known[name](), key) == "${optimization.max_update}"
    assert hasattr(known["cosine"](), "lr_period_updates")


def test_what_differs_without_being_another_run_is_told(begin):
    said = begin("--decoder-layerdrop", "0.1")
    assert said.startswith(f"starting anew: {begin.short} holds a run with other settings (flags was []")


def test_a_run_that_was_not_finished_whole(begin):
    last = begin.short / "checkpoints/checkpoint_last.pt"
    whole = last.read_bytes()
    told = torch.load(last, weights_only=True)
    told["optimizer_history"][-1]["num_updates"] = 6
    torch.save(told, last)
    assert begin() == f"starting anew: {begin.short} ended after 6 of its 8 updates\n"
    last.unlink()
    assert begin() == f"starting anew: {last} is gone, which a longer run would go on from\n"
    last.write_bytes(whole)
    with (begin.short / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert begin().startswith(f"starting anew: {begin.short} is in use")
    for name, content in (("evaluation.json", "{}"), ("run.json", "[1]")):
        (begin.short / name).write_text(content)
        assert begin() == ""
