"""What is shown of a training while it runs."""

import io
import json
import math

import pytest
from rich.console import Console

from fairseq_lrpe.experiments import watch
from fairseq_lrpe.experiments.experiment import Experiment
from fairseq_lrpe.experiments.run_folder import Log, locked
from fairseq_lrpe.experiments.runner import Job

INNER = {"epoch": 1, "loss": "3.5", "ppl": "11.31", "wps": "2000", "ups": "1.95", "wpb": "1024"}


def line(kind, **entry):
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(entry)}\n"


@pytest.fixture
def shown(monkeypatch):
    """watched(folder, terminal): what is shown of three lines of fairseq's log."""

    def shown(folder, terminal):
        said = io.StringIO()
        options = {"file": said, "force_terminal": terminal, "width": 300, "color_system": None}
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(watch, "Console", lambda **_: Console(**options))
        with watch.watched("a/run", 1100, Log(folder), "valid_ppl") as take:
            take(line("train_inner", **INNER, num_updates="100"))
            take(line("valid", epoch=1, valid_loss="3.4", valid_ppl="10.56", valid_num_updates="100"))
            take("something else\n")
        return said.getvalue()

    return shown


def test_a_terminal_has_one_line(shown, tmp_path):
    """Of which the last state stands, and validations above it."""
    said = shown(tmp_path, terminal=True)
    told = "100 of 1,100 updates, loss 3.5, ppl 11.31, 2,000 tokens/s, 0:08:32 left, log "
    assert f"{told}{tmp_path}/train.log" in said
    assert "    100 updates: valid ppl 10.56\n" in said and "a/run" not in said


def test_a_pipe_gets_a_line_a_minute_with_the_runs_name(shown, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "EVERY", math.inf)
    assert shown(tmp_path, terminal=False) == "    100 updates: valid ppl 10.56\n"
    monkeypatch.setattr(watch, "EVERY", 0)
    first, validation, last = shown(tmp_path, terminal=False).splitlines()
    assert first.startswith("a/run: 100 of 1,100 updates, loss 3.5, ppl 11.31, ") and first == last
    assert validation == "    100 updates: valid ppl 10.56"


def test_a_table_tells_how_a_run_stands_or_the_trial_that_it_is_at(tmp_path):
    choices = ["choose.train.lr=[1e-3,1e-2]", "updates=1100"]
    experiment = Experiment.load("lm/mini", choices)
    [run] = experiment.runs("linear", "base", [1])
    job = Job(experiment, run, tmp_path)
    assert watch.standing(job) == f"{run}: 0 of 1,100 updates, log {job.folder}/train.log"
    trial = job.trials()[1]
    with locked(trial.folder):
        Log(trial.folder).take(line("train_inner", **INNER, num_updates="100"))
        assert watch.standing(job).startswith(f"{trial.run}: 100 of 1,100 updates, loss 3.5, ppl 11.31, ")
