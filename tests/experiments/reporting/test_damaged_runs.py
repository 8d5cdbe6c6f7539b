"""A damaged run is reported in one line, and the other runs are shown, whatever is damaged."""

import json
import math
import shutil
from datetime import UTC, datetime

import pytest
from support.damage import EXPERIMENT, LOG, SOUND, SOUND_VALUE, VALUES, damaged, paths, write, write_sound

import fairseq_lrpe
from fairseq_lrpe.cli import evaluate
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.run import RECORDS
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.execution import endings, run_directory
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.progress import describe_folder
from fairseq_lrpe.experiments.execution.run_log import Log, training_speed
from fairseq_lrpe.experiments.inference import glue_submission, load
from fairseq_lrpe.experiments.reporting import (
    aggregate,
    atlas,
    comparison,
    experiment_runs,
    recorded_files,
    recording,
    renderers,
    report,
    tables,
)
from fairseq_lrpe.experiments.reporting.plots import experiment_lines, plot_curves
from fairseq_lrpe.experiments.reporting.records import read_run, read_runs
from fairseq_lrpe.utils.errors import UserError

READ_SETTINGS = ("data", "by_method", "evaluate", "choose", "task", "starts_from", "updates", "epochs")
"""Settings that are read without the YAML file; others, such as the flags of fairseq, are only shown."""
SOME_VALUES = [None, "null", "[]", "NaN", "9" * 400, "[" * 150 + "]" * 150]


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


@pytest.mark.slow
def test_every_rendering_shows_the_sound_run(mutants, tmp_path):
    folder, damages = mutants
    records = read_runs(folder)
    text = "\n".join(renderers.markdown(experiment_runs.experiment_sections(records)))
    assert f"{SOUND_VALUE}" in text and "damaged" in text
    aggregate.summarize_runs(records)
    plot_curves("all", experiment_lines(records), tmp_path / "plot.png")
    found = fairseq_lrpe.load_results(folder)
    sound = found[(found["method"] == "base") & (found["metric"] == "perplexity")]
    assert sound["value"].tolist() == [SOUND_VALUE]
    page = report.render(report.scan(folder), datetime.now(UTC))
    assert f"{SOUND_VALUE}" in page and page.count("<tr id=") == len(damages) + 1
    assert all(json.dumps(recorded_files.settings_line(x)) for x in records if x.state == "finished")
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
        "evaluate": lambda run: evaluate.load_evaluator(run, [8]),
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


@pytest.mark.exhaustive
@pytest.mark.slow
def test_atlas_beside_damaged_runs(mutants):
    assert "Atlas" in atlas.render(mutants[0])
