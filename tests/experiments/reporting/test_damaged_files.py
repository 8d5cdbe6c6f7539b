"""Files of a run that are no files, or have no content of a run, and the commands that read results."""

import json

import pytest
from support.damage import EXPERIMENT, KINDS_OF_FILES, SOUND, SOUND_VALUE, replace_file, write, write_sound
from support.tiny import run_here

from fairseq_lrpe.cli import main as lrpe
from fairseq_lrpe.experiments.definition.run import RECORDS
from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.execution.progress import describe_folder
from fairseq_lrpe.experiments.execution.run_files import parse_object
from fairseq_lrpe.experiments.execution.run_log import Log, training_speed
from fairseq_lrpe.experiments.execution.run_schema import Evaluation, Settings
from fairseq_lrpe.experiments.reporting import experiment_runs, recording, renderers
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.utils.errors import UserError

SOUND_LOGS = [("log.jsonl", "empty"), ("log.jsonl", "truncated")]
"""Damages of a log that say nothing about the run: its last line may be incomplete."""


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
    table = "\n".join(renderers.markdown(experiment_runs.experiment_sections(list(records.values()))))
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
    lines, _ = recording.check(folder, tmp_path / "records")
    damaged_runs = sum("link" not in kind for kind in KINDS_OF_FILES)
    assert sum("damaged: evaluation.json" in reason for reason in found[1]) == damaged_runs
    assert lines[-1].count("damaged: evaluation.json") == damaged_runs


def test_comparison_beside_a_damaged_seed(tmp_path):
    folder = write_sound(tmp_path / "results")
    for seed in (1, 2):
        write(folder / f"{EXPERIMENT}/linear_rope/seed-{seed}", seed=seed)
    replace_file(folder / f"{EXPERIMENT}/linear_rope/seed-2/log.jsonl", "nested")
    done = run_here(lrpe, "compare", folder / SOUND, folder / f"{EXPERIMENT}/linear_rope")
    assert done.returncode == 0 and f"| {SOUND_VALUE} | 30.50 |" in done.stdout
    assert "(seeds 1)" in done.stdout and "seed-2 cannot be read: log.jsonl is damaged (" in done.stdout


@pytest.mark.parametrize(
    "model, content",
    [
        (Evaluation, {"ended": {"updates": 8, "reason": "\x1b[31mred"}}),
        (Settings, {"method": "rope\x1b]0;title\x07"}),
        (Settings, {"experiment": "lm/mini\x9b31m"}),
    ],
)
def test_control_characters_do_not_reach_a_terminal(model, content):
    with pytest.raises(ValueError, match=r"ended\.reason|method|experiment"):
        parse_object(json.dumps(content).encode(), model)
