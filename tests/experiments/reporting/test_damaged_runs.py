"""A damaged run is reported in one line, and the other runs are shown, whatever is damaged."""

import json
import math
import shutil
from datetime import UTC, datetime

import pytest
from omegaconf import OmegaConf
from support.damage import KINDS_OF_FILES, VALUES, damaged, paths, replace_file
from support.tiny import run_here

import fairseq_lrpe
from fairseq_lrpe.cli import evaluate, results
from fairseq_lrpe.cli import main as lrpe
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.run import RECORDS
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.execution import endings, run_directory
from fairseq_lrpe.experiments.execution.progress import describe_folder
from fairseq_lrpe.experiments.execution.run_log import Log, training_speed
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.inference import glue_submission, load
from fairseq_lrpe.experiments.reporting import (
    aggregate,
    atlas,
    comparison,
    recording,
    renderers,
    report,
    tables,
)
from fairseq_lrpe.experiments.reporting.plots import experiment_lines, plot_curves
from fairseq_lrpe.experiments.reporting.records import read_run, read_runs
from fairseq_lrpe.utils.errors import UserError

EXPERIMENT = "lm/mini"
SOUND = "lm/mini/linear_base/seed-1"
SOUND_VALUE = 33.25
SETTINGS = {
    "experiment": EXPERIMENT,
    "attention": "linear",
    "method": "rope",
    "seed": 1,
    "changes": {},
    "kind": "lm",
    "updates": 400,
    "gpus": 2,
    "nodes": 1,
    "cpu": True,
    "precision": "fp32",
    "rendezvous": None,
    "gpu_names": ["Toy (cuda:0)"],
    "processor": {"name": "Toy CPU", "instructions": "AVX2", "threads": 2},
    "flags": ["--fp16"],
    "starts_from": {"path": "a.pt", "sha256": "0" * 64},
    "data": {"train.bin": 9, "valid.bin": 4},
    "versions": {"python": "3.11.7", "torch": "2.0", "fairseq": None, "fairseq_lrpe": "1.0"},
    "git": {"revision": "0" * 40, "dirty": True},
    "extended": {"from": "lm/mini/linear_rope/updates=9/seed-1", "updates": 9},
    "started": "2020-01-02T03:04:05+00:00",
}
LOG = [
    {"kind": "tried", "trial": "train.lr=0.1", "num_updates": 10},
    {
        "kind": "train_inner",
        "epoch": 1,
        "loss": 6.4,
        "ppl": 84.1,
        "wps": 51,
        "wpb": 9,
        "bsz": 4,
        "num_updates": 200,
    },
    {"kind": "valid", "epoch": 1, "valid_loss": 6.1, "valid_ppl": 66.2, "valid_num_updates": 400},
    {"kind": "train", "epoch": 1, "train_loss": 6.1, "train_train_wall": 9, "train_num_updates": 400},
]


READ_SETTINGS = ("data", "by_method", "evaluate", "choose", "task", "starts_from", "updates", "epochs")
"""Settings that are read without the YAML file; others, such as the flags of fairseq, are only shown."""
SOME_VALUES = [None, "null", "[]", "NaN", "9" * 400, "[" * 150 + "]" * 150]


SOUND_LOGS = [("log.jsonl", "empty"), ("log.jsonl", "truncated")]
"""Damages of a log that say nothing about the run: its last line may be incomplete."""


def write(folder, perplexity=30.5, **changed):
    """Writes all files of a finished run with all keys that a run can have."""
    folder.mkdir(parents=True)
    config = OmegaConf.to_container(Experiment.load(EXPERIMENT).cfg, resolve=True)
    config |= {
        "by_method": {"rope": {"clip_norm": 1.0}},
        "choose": {"train.lr": [0.1]},
        "task": "RTE",
        "epochs": 2,
    }
    metrics = {"perplexity": perplexity, "bits": 5.1, "nats": 3.5, "tokens": 558, "length": 256}
    metrics |= {"settings": {"split": "valid", "length": 256}, "perplexity_signature": "x"}
    evaluations = {"valid": metrics, "training": {"tokens_per_second": 51}}
    evaluation = {"chosen": "train.lr=0.1", "checkpoint": "checkpoints/checkpoint_best.pt"}
    evaluation |= {"evaluations": evaluations, "tried": {"train.lr=0.1": {"valid": {"perplexity": 1.0}}}}
    evaluation |= {"ended": {"updates": 400, "reason": "patience"}, "finished": "2020-01-02T03:04:05+00:00"}
    files = {"run.json": SETTINGS | {"config": config} | changed, "evaluation.json": evaluation}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in LOG))
    return files


def write_sound(folder):
    write(folder / SOUND, SOUND_VALUE, method="base")
    return folder


@pytest.fixture(scope="module")
def mutants(tmp_path_factory):
    """(results folder, {run folder: its damage}) of a sound run and one run per damaged value."""
    folder, found = write_sound(tmp_path_factory.mktemp("results")), {}

    def add(name, path, text, value):
        seed = len(found) + 2
        run = folder / f"{EXPERIMENT}/linear_rope/seed-{seed}"
        run.mkdir(parents=True)
        for other in RECORDS:
            (run / other).write_text(text if other == name else whole[other])
        settings = (run / "run.json").read_text()
        (run / "run.json").write_text(settings.replace('"seed": 1,', f'"seed": {seed},'))
        found[run] = f"{name} {'.'.join(map(str, path))} = {value and value[:20]}"

    files = write(folder / "lm/other/linear_rope/seed-1")
    whole = {name: json.dumps(content) for name, content in files.items()}
    whole["log.jsonl"] = "".join(json.dumps(entry) + "\n" for entry in LOG)
    shutil.rmtree(folder / "lm/other")
    for name, content in files.items():
        for path in paths(content):
            is_flag = path[0] == "config" and path[1:2] != () and path[1] not in READ_SETTINGS
            chosen = SOME_VALUES if is_flag else [None, *VALUES]
            for value in chosen:
                add(name, path, damaged(content, path, value), value)
    for number, entry in enumerate(LOG):
        for path in paths(entry):
            for value in [None, *VALUES]:
                lines = [json.dumps(line) for line in LOG]
                lines[number] = damaged(entry, path, value)
                add("log.jsonl", path, "".join(f"{line}\n" for line in lines), value)
    return folder, found


def test_damaged_values_are_reported_or_read(mutants):
    folder, damages = mutants
    records = {record.folder: record for record in read_runs(folder)}
    assert len(damages) > 1000 and records.keys() == {*damages, folder / SOUND}
    assert records[folder / SOUND].value("valid", "perplexity") == SOUND_VALUE
    assert {record.state for record in records.values()} == {"finished", "damaged", "stopped"}
    for path, damage in damages.items():
        record = records[path]
        name = damage.partition(" ")[0]
        if record.problem is not None:
            assert name in record.problem and ": " in record.problem and "\n" not in record.problem, damage
            continue
        assert 0 <= record.reached <= 10**15 and record.updates >= 0, damage
        numbers = [value for _, _, value, _ in record.measurements()]
        assert all(isinstance(value, float) for value in [*numbers, *record.curve.values()]), damage
        assert not any(1e300 < abs(value) < math.inf for value in numbers), damage


@pytest.mark.parametrize(("name", "path", "value"), [
    ("run.json", ["git"], "null"),
    ("run.json", ["updates"], "9" * 400),
    ("run.json", ["config", "train"], "[]"),
    ("run.json", ["versions"], '["x"]'),
    ("run.json", ["kind"], "[" * 5000 + "]" * 5000),
    ("evaluation.json", ["evaluations"], "[]"),
    ("evaluation.json", ["evaluations", "valid", "perplexity"], '"x"'),
    ("evaluation.json", ["ended", "updates"], "NaN"),
    ("evaluation.json", ["finished"], "null"),
])  # fmt: skip
def test_reason(name, path, value, tmp_path):
    write_sound(tmp_path)
    run = tmp_path / f"{EXPERIMENT}/linear_rope/seed-1"
    content = write(run)[name]
    (run / name).write_text(damaged(content, path, value))
    record = read_run(run, tmp_path)
    assert record.state == "damaged" and record.problem.startswith(f"{name} is damaged (")
    assert path[-1] in record.problem or "recursion" in record.problem
    assert "restore" in record.problem


def test_every_rendering_shows_the_sound_run(mutants, tmp_path):
    folder, damages = mutants
    records = read_runs(folder)
    text = "\n".join(renderers.markdown(tables.experiment_sections(records)))
    assert f"{SOUND_VALUE}" in text and "damaged" in text
    aggregate.summarize_runs(records)
    plot_curves("all", experiment_lines(records), tmp_path / "plot.png")
    found = fairseq_lrpe.load_results(folder)
    sound = found[(found["method"] == "base") & (found["metric"] == "perplexity")]
    assert sound["value"].tolist() == [SOUND_VALUE]
    page = report.render(report.scan(folder), datetime.now(UTC))
    assert f"{SOUND_VALUE}" in page and page.count("<tr id=") == len(damages) + 1
    assert all(json.dumps(recording._settings_line(x)) for x in records if x.state == "finished")
    recording.finished_runs(folder)
    table = Table("tmlr_table2", "mini")
    rows = tables.table_records(table, records)
    assert aggregate.summarize(table, rows)["state"].size
    for record in records[:: len(records) // 200]:
        if record.problem is None:
            sound = read_run(folder / SOUND, folder)
            comparison.different_settings([record], [sound])


def test_execution_of_damaged_runs_ends_in_one_line(mutants):
    folder, damages = mutants
    sound = json.loads((folder / SOUND / "run.json").read_text())
    steps = {
        "check_settings": lambda run: run_directory.check_settings(run, sound),
        "log": Log,
        "progress": lambda run: describe_folder(run, 400),
        "speed": training_speed,
        "ending": endings.logged_updates,
        "evaluate": lambda run: evaluate.load_job(run, [8]),
        "checkpoint": lambda run: load.find(run, ()),
        "state": lambda run: Job(experiment, read_run(run, folder).run, folder).state,
    }
    experiment = Experiment.load(EXPERIMENT)
    for number, (run, damage) in enumerate(damages.items()):
        for name, step in steps.items():
            if name in ("evaluate", "state") and number % 7:  # they take longer
                continue
            try:
                step(run)
            except (UserError, OSError) as error:
                assert "\n" not in str(error), (name, damage)
            except Exception as error:
                raise AssertionError(f"{name}: {damage}") from error
    with pytest.raises(UserError):
        list(glue_submission.finished_runs(folder / f"{EXPERIMENT}/linear_rope"))


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
@pytest.mark.parametrize("name", [*RECORDS, "lock", "train.log"])
def test_damaged_files_hide_no_run(name, kind, tmp_path):
    write_sound(tmp_path)
    run = tmp_path / f"{EXPERIMENT}/linear_rope/seed-1"
    write(run)
    replace_file(run / name, kind)
    records = {record.run.method: record for record in read_runs(tmp_path)}
    assert records["base"].value("valid", "perplexity") == SOUND_VALUE
    is_missing = "link" in kind and name != "run.json"
    is_damaged = name in RECORDS and not is_missing and (name, kind) not in SOUND_LOGS
    assert (records["rope"].state == "damaged") == is_damaged
    if is_damaged:
        assert records["rope"].problem.startswith(f"{name} ") and "remove" in records["rope"].problem
    table = "\n".join(renderers.markdown(tables.experiment_sections(list(records.values()))))
    assert f"{SOUND_VALUE}" in table
    training_steps = (Log, training_speed, endings.logged_updates, lambda run: describe_folder(run, 400))
    for step in training_steps:
        try:
            step(run)
        except (UserError, OSError) as error:
            assert str(run) in str(error)


@pytest.mark.parametrize(("name", "kind"), [
    ("run.json", "nested"), ("run.json", "pipe"), ("evaluation.json", "a list"), ("log.jsonl", "zeros"),
])  # fmt: skip
def test_commands(name, kind, tmp_path):
    """Each command that reads results shows the sound run, or names the damaged file in its only line."""
    folder = write_sound(tmp_path / "results")
    run = folder / f"{EXPERIMENT}/linear_rope/seed-1"
    write(run)
    replace_file(run / name, kind)
    shown = run_here(lrpe, "results", "--results", folder, "--experiment", EXPERIMENT)
    assert shown.returncode == 0 and f"{SOUND_VALUE}" in shown.stdout and f"{name} is " in shown.stdout
    out = tmp_path / "report.html"
    assert run_here(lrpe, "report", "--results", folder, "--out", out).returncode == 0
    assert f"{SOUND_VALUE}" in out.read_text() and f"{name} is " in out.read_text()
    words = [["compare", run, folder / SOUND]]
    if name != "log.jsonl":
        words += [["evaluate", run, 8], ["generate", run], ["classify", run, tmp_path, "valid=x.tsv"]]
    for command, *arguments in words:
        done = run_here(lrpe, command, *arguments)
        *usage, last = done.stderr.strip().splitlines()
        assert done.returncode == 1 and not usage and f"{name} is " in last, done.stderr


def test_recording_and_checking_beside_damaged_runs(tmp_path):
    folder = write_sound(tmp_path / "results")
    for seed, kind in enumerate(KINDS_OF_FILES, 2):
        write(folder / f"{EXPERIMENT}/linear_rope/seed-{seed}", seed=seed)
        replace_file(folder / f"{EXPERIMENT}/linear_rope/seed-{seed}/evaluation.json", kind)
    found = recording.finished_runs(folder)
    lines, _ = recording.check(folder, results.RECORDED)
    damaged_runs = sum("link" not in kind for kind in KINDS_OF_FILES)
    assert sum("damaged: evaluation.json" in reason for reason in found[1]) == damaged_runs
    assert lines[-1].count("damaged: evaluation.json") == damaged_runs
    assert "Atlas" in atlas.render(folder)
