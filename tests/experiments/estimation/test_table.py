"""The option --estimate of `lrpe table` and `lrpe train`."""

import csv
import json

import pytest
from support.tiny import BIN, REPOSITORY, output_of, run_command, run_here

from fairseq_lrpe.cli import table, train
from fairseq_lrpe.experiments.definition.config_files import tables
from fairseq_lrpe.experiments.definition.experiment import Experiment


def estimate(main, *words):
    """Returns ({run: cells}, the lines below the table)."""
    output = output_of(main, "--estimate", *words)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines()]
    return {row[0]: row[1:] for row in rows if row}, output.rpartition("┘")[2].strip().splitlines()


def test_table_groups_trials_and_seeds(tmp_path):
    words = ["tmlr_table1", "--methods", "base", "--results", tmp_path / "results", "grid.task=[RTE,CoLA]"]
    rows, lines = estimate(table.main, *words, "train.encoder_layers=2")
    assert len(rows) == 1 + 2
    count, _, tokens, *_ = rows["roberta/wikibook/linear_base/train.encoder_layers=2"]
    assert (count, tokens) == ("1", f"{512 * 512 * 23000:.2e}".replace("e+0", "e"))
    assert rows["glue/wikibook/linear_base/task=RTE"][0] == str(5 * 4)
    assert lines[0].startswith("Not finished: ") and "on 1 × v100, one training after the other" in lines[0]
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_hours_of_the_results_page(tmp_path):
    """If this test fails, run `bash scripts/estimate_hours.sh`."""
    with open(REPOSITORY / "docs/results/estimated_hours.csv", newline="") as file:
        hours = {line["table"]: line["hours"] for line in csv.DictReader(file)}
    assert len(hours) > 10 and hours.keys() <= set(tables())
    _, lines = estimate(table.main, "roper", "--results", tmp_path)
    assert lines[0].startswith(f"Not finished: {hours['roper']} hours on 1 × v100")


def test_hours_of_a_gpu(tmp_path):
    words = ["lm/wikitext103", "base", "--results", tmp_path]
    rows, lines = estimate(train.main, *words, "--on", "a100", "--gpus", 8, "--precision", "bf16")
    [(*_, flops, _, _, hours, bound)] = rows.values()
    assert bound == "FLOPs" and float(hours) == pytest.approx(
        float(flops) / (0.35 * 312e12 * 8) / 3600, rel=0.05
    )
    assert "35% of the peak of 312 TFLOP/s in bf16" in lines[1]


def test_hours_of_a_small_model(tmp_path):
    """They are those of the host that starts the calls, which a faster GPU does not reduce."""
    words = ["lra/text", "base", "--results", tmp_path]
    rows, lines = estimate(train.main, *words, "--on", "h100")
    [(*_, calls, _, hours, bound)] = rows.values()
    updates = Experiment.load("lra/text").cfg.updates
    calls = int(calls.replace(",", ""))
    assert bound == "calls" and float(hours) * 3600 == pytest.approx(updates * calls * 16.6e-6, rel=0.05)
    assert (
        "about 16.6 µs each in forward and backward passes and 8 in the optimizer" in f"{lines[2]} {lines[3]}"
    )


def test_finished_runs_are_not_counted(tmp_path):
    folder = tmp_path / "lm/wikitext103/linear_base/seed-1"
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text(json.dumps({"evaluations": {}, "finished": "2026-01-01"}))
    words = ["lm/wikitext103", "base", "--results", tmp_path]
    rows, lines = estimate(train.main, *words, "--seed", 1, 2)
    [(count, *_, hours, _)] = rows.values()
    assert count == "2, 1 finished" and f" {hours} hours" in lines[0]
    (folder / "evaluation.json").write_text("{")
    done = run_here(train.main, *words, "--estimate")
    assert done.returncode == 0 and "evaluation.json is damaged" in done.stderr and "hours" in done.stdout


def test_models_that_do_not_fit_are_named(tmp_path):
    """Only on the GPU whose memory is too small, and without warnings of hydra about fairseq's own calls."""
    words = ["lm/wikitext103", "base", "--estimate", "--results", tmp_path]
    done = run_command(BIN / "lrpe", "train", *words)
    needed = "lm/wikitext103/linear_base needs 17 GB, more than the 16 GB of a v100: reduce batch.per_gpu"
    assert needed in done.stdout and not done.stderr
    assert "more than" not in output_of(train.main, *words, "--on", "a100")
