"""lrpe results --validate: real records without problems, and each kind of damage."""

import json
import shutil

import pytest
from support.tiny import REPOSITORY, run_here

from fairseq_lrpe.cli import results
from fairseq_lrpe.experiments.reporting import recorded_results

RECORDS = REPOSITORY / "docs/results"
NAME = "lm-quickstart"
RUN = "lm/quickstart/linear_rope/seed-1"
ROW = "lm/quickstart,linear,rope,,1,"


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the recorded results of one experiment."""
    for path in RECORDS.glob(f"*/{NAME}.*"):
        target = tmp_path / "records" / path.relative_to(RECORDS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path / "records"


@pytest.fixture
def base(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "base")


def validate(folder, *words):
    done = run_here(results.main, "--validate", folder, *words)
    assert (done.returncode == 1) == bool(done.stdout)
    return done.stdout.splitlines()


def change_line(folder, **changed):
    """Replaces values in the settings of ``RUN``."""
    path = folder / f"settings/{NAME}.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for line in lines:
        if (line["method"], line["seed"]) == ("rope", 1):
            line |= changed
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_rows(folder, kind, change):
    """Replaces the rows of ``RUN`` in the file of measurements or curves by ``change(row)``."""
    path = folder / f"{kind}/{NAME}.csv"
    rows = [change(row) if row.startswith(ROW) else row for row in path.read_text().splitlines()]
    path.write_text("".join(f"{row}\n" for row in rows if row))


def test_records_without_problems(folder, base):
    assert validate(folder) == [] and validate(folder, "--results", base) == []


@pytest.mark.parametrize(("changed", "message"), [
    ({"versions": {"torch": "2.13.0"}}, "its settings name no version of fairseq_lrpe (versions)"),
    ({"versions": {"fairseq_lrpe": "2.0"}}, "its settings name no version of torch (versions)"),
    ({"data": ""}, "its settings name no data (data)"),
    ({"machine": "-"}, "its settings name no CPU or GPU (machine is '-')"),
    ({"machine": "CPU fp32"}, "its settings name no CPU or GPU (machine is 'CPU fp32')"),
    ({"updates": 1}, "after the 1 updates of its training"),
    ({"evaluations": {}}, "its evaluation test has measurements, but no settings"),
])  # fmt: skip
def test_incomplete_settings(changed, message, folder):
    change_line(folder, **changed)
    problems = validate(folder)
    assert problems and all(line.startswith(f"{RUN}: ") for line in problems)
    assert any(line.endswith(message) for line in problems), problems


def test_settings_other_than_the_tables(folder):
    config = recorded_results.read_settings(folder)
    [config] = [line["config"] for run, line in config.items() if str(run) == RUN]
    change_line(folder, config=config | {"train.lr": 0.25})
    [problem] = validate(folder)
    assert problem.startswith(f"{RUN}: its settings differ from those in configs: train.lr was 0.25, now ")


def test_numbers_without_a_run_and_a_run_without_numbers(folder):
    for kind in ("measurements", "curves"):
        change_rows(folder, kind, lambda row: row.replace(ROW, ROW.replace(",1,", ",77,")))
    other = RUN.replace("seed-1", "seed-77")
    problems = validate(folder)
    assert f"{RUN}: it has no measurements" in problems and f"{RUN}: it has no curve" in problems
    assert problems[-2:] == [
        f"{other}: measurements without a line in settings/",
        f"{other}: curves without a line in settings/",
    ]


def test_changed_records(folder, base):
    change_rows(folder, "measurements", lambda row: row.replace(",test,perplexity,", ",test,perplexity,1"))
    change_rows(folder, "curves", lambda row: "")
    change_line(folder, machine="2 × NVIDIA A100 fp32")
    problems = validate(folder, "--results", base)
    assert problems[0] == f"{RUN}: its recorded machine changed"
    assert problems[1].startswith(f"{RUN}: measurements test perplexity was ")
    assert len(problems) > 2 and all(
        " curves " in line and line.endswith("now missing") for line in problems[2:]
    )


def test_new_runs_may_be_added_and_none_removed(folder, base):
    change_line(base, seed=1, method="removed")
    for kind in ("measurements", "curves"):
        change_rows(base, kind, lambda row: "")
    assert validate(folder, "--results", base) == ["lm/quickstart/linear_removed/seed-1: it is removed"]


def test_folders_without_records(tmp_path, folder):
    for words in ((tmp_path,), (folder, "--results", tmp_path)):
        done = run_here(results.main, "--validate", *words)
        [line] = done.stderr.splitlines()
        assert done.returncode == 1 and f"{tmp_path} contains no recorded results" in line
