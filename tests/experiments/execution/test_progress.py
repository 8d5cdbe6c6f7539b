"""Progress of a run, on a terminal and elsewhere."""

import io
import json
import os
from types import SimpleNamespace

import pytest
from rich.console import Console
from support.tiny import job_of

from fairseq_lrpe.experiments.definition.kinds import KINDS
from fairseq_lrpe.experiments.execution import progress
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.execution.run_log import Log

INNER = {"epoch": 1, "loss": "3.5", "ppl": "11.31", "wps": "2000", "ups": "1.95", "wpb": "1024"}


def line(kind, **entry):
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(entry)}\n"


@pytest.fixture
def shown(monkeypatch):
    """shown(folder): the output for three lines of fairseq's log."""

    def shown(folder, terminal=True):
        job = SimpleNamespace(run="a/run", updates=1100, stop=None, cfg=None, kind=KINDS["lm"])
        output = io.StringIO()
        options = {"file": output, "force_terminal": terminal, "width": 300, "color_system": None}
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(progress, "Console", lambda **_: Console(**options))
        with progress.show_training(job, Log(folder)) as record:
            record(line("train_inner", **INNER, num_updates="100"))
            record(line("valid", epoch=1, valid_loss="3.4", valid_ppl="10.56", valid_num_updates="100"))
            record("something else\n")
        return output.getvalue()

    return shown


def test_terminal_shows_one_line_and_the_validations(shown, tmp_path):
    output = shown(tmp_path)
    status = "100 of 1,100 updates, loss 3.5, ppl 11.31, 2,000 tokens/s, 0:08:32 left, log "
    assert f"{status}{tmp_path}/train.log" in output
    assert "    100 updates: valid ppl 10.56\n" in output and "a/run" not in output


@pytest.mark.parametrize("interval, lines", [(0, 4), (3600, 1)])
def test_a_log_shows_the_status_at_intervals(interval, lines, shown, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "REPORT_INTERVAL", interval)
    output = shown(tmp_path, terminal=False)
    assert output.count("a/run: ") == lines and "    100 updates: valid ppl 10.56\n" in output


def test_job_is_described_by_its_current_trial(tmp_path):
    overrides = ["choose.train.lr=[1e-3,1e-2]", "updates=1100"]
    job = job_of("lm/mini", "base", overrides=overrides, results=tmp_path)
    assert progress.describe_job(job) == f"{job.run}: 0 of 1,100 updates, log {job.folder}/train.log"
    trial = job.trials()[1]
    with locked(trial.folder):
        log = trial.folder / "train.log"
        log.write_text(f"$ fairseq-train\n{line('train_inner', **INNER, num_updates='100')}")
        Log(trial.folder).record(line("train_inner", **INNER, num_updates="100"))
        status = f"{trial.run}: 100 of 1,100 updates, loss 3.5, ppl 11.31, "
        assert progress.describe_job(job).startswith(status)
        (trial.folder / "eval-test.log").write_text("$ fairseq-eval-lm\n")
        os.utime(log, (1, 1))
        assert progress.describe_job(job) == f"{trial.run}: evaluating test"
