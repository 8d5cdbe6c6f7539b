"""``lrpe results --experiment``: all runs of an experiment."""

import json

import pytest
from support.tiny import run_here, write_run

from fairseq_lrpe.cli import results

UPDATES = "updates=800"


@pytest.fixture
def folder(tmp_path):
    """Runs of an experiment without a YAML file, and one of another experiment."""
    for seed, valid in ((1, 100), (2, 102), (3, 104)):
        write_run(tmp_path / f"lm/gone/linear_base/seed-{seed}", {50: 2 * valid, 400: valid}, valid, 400)
    write_run(tmp_path / f"lm/gone/linear_base/{UPDATES}/seed-1", {400: 100, 800: 90}, 90, 800)
    write_run(tmp_path / "lm/gone/softmax_mine/train.lr=0.1/seed-7", {400: 95}, 95, 400)
    write_run(tmp_path / "lm/gone/softmax_mine/train.lr=0.1/seed-8", {200: 99}, None, 400)
    write_run(tmp_path / "lm/gone/more/linear_base/seed-1", {400: 9}, 9, 400)
    return tmp_path


def shown(folder):
    """Returns the cells of the table."""
    done = run_here(results.main, "--results", folder, "--experiment", "lm/gone")
    assert done.returncode == 0, done.stderr
    rows = (line.strip("|").split("|") for line in done.stdout.splitlines() if "|" in line)
    return [[cell.strip() for cell in row] for row in rows]


def test_rows_and_columns(folder):
    header, _, *rows = shown(folder)
    columns = "attention", "method", "changes", "seeds", "length", "state", "valid perplexity", "valid bits"
    assert tuple(header) == columns
    stopped = "seed 8 stopped at 200 of 400"
    assert rows == [
        ["linear", "base", "-", "3", "400 updates", "finished", "102.00 ± 2.00", "1.0000 ± 0.0000"],
        ["linear", "base", UPDATES, "1", "800 updates", "finished", "90.00", "1.0000"],
        ["softmax", "mine", "train.lr=0.1", "2", "400 updates", stopped, "95.00 (1)", "1.0000 (1)"],
    ]


def test_damaged_seed_and_evaluation_of_a_single_seed(folder):
    (folder / "lm/gone/linear_base/seed-2/run.json").write_text("3")
    path = folder / "lm/gone/linear_base/seed-1/evaluation.json"
    record = json.loads(path.read_text())
    record["evaluations"] |= {"far": {"settings": {}, "perplexity": 7.0}}
    path.write_text(json.dumps(record))
    header, _, row, *_ = shown(folder)
    assert row[3] == "3" and row[6] == "102.00 ± 2.83 (2)"
    problem = "run.json is damaged (it is not a JSON object): restore it, or remove the run's folder"
    assert row[5] == f"seed 2 damaged: {problem}"
    assert header[-1] == "far perplexity" and row[-1] == "7.00 (1)"
