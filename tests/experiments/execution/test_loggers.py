"""The loggers that --report-to selects."""

import pytest
from support.tiny import job_of, output_of, run_here

from fairseq_lrpe.cli import table, train
from fairseq_lrpe.experiments.execution import launch


def test_each_run_has_its_own_folder(tmp_path):
    words = ["lm/mini", "rope", "--cpu", "--dry-run", "--seeds", 1, 2, "--results", tmp_path]
    commands = output_of(train.main, *words, "--report-to", "tensorboard").splitlines()
    for seed, command in enumerate(commands, 1):
        folder = tmp_path / f"lm/mini/linear_rope/seed-{seed}"
        assert f"--tensorboard-logdir {folder}/tensorboard" in command
    assert len(commands) == 2
    assert "tensorboard" not in output_of(train.main, *words)


def test_tables(tmp_path):
    words = ["quickstart", "--cpu", "--dry-run", "--results", tmp_path, "--report-to", "tensorboard"]
    commands = output_of(table.main, *words).splitlines()
    folders = {command.split("--tensorboard-logdir ")[1].split()[0] for command in commands}
    assert len(folders) == len(commands) == 4


def test_runs_of_wandb_are_named_after_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "find_spec", lambda name: True)
    job = job_of("lm/mini", "rope", results=tmp_path)
    assert "WANDB_NAME" not in job.command_options["environment"]
    job.report_to = "wandb"
    assert job.command_options["environment"]["WANDB_NAME"] == "lm/mini/linear_rope/seed-1"
    words = ["lm/mini", "rope", "--cpu", "--dry-run", "--report-to", "wandb"]
    assert "--wandb-project fairseq-lrpe" in output_of(train.main, *words)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    for name, package in launch.LOGGERS.items():
        done = run_here(train.main, "lm/mini", "rope", "--cpu", "--dry-run", "--report-to", name)
        assert f"--report-to {name} needs the package {package}: run `pip install {package}`" in done.stderr


@pytest.mark.slow
def test_a_training_writes_events_for_tensorboard(tmp_path):
    """A run continues with or without the logger, which is no setting of the run."""
    others = [f"evaluations.pairs_{pairs}=null" for pairs in (8, 16, 32)]
    words = ["synthetic_lm/mqar_mini", "rope", "--cpu", "--results", tmp_path, "updates=2", *others]
    output_of(train.main, *words, "--report-to", "tensorboard")
    [folder] = tmp_path.glob("**/seed-1")
    events = [path.parent.name for path in folder.glob("tensorboard/*/events.out.tfevents.*")]
    assert "train_inner" in events or "train" in events
    assert "finished" in output_of(train.main, *words)
