"""Trainings that end before their last update: time limits, stop conditions, and losses that diverge."""

import json
import math

import pytest
from support.tiny import SMALL_LM, job_of, output_of, read, run_here

from fairseq_lrpe.cli import results, train
from fairseq_lrpe.experiments.execution import endings, run_log, training
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.execution.run_files import write_json
from fairseq_lrpe.experiments.reporting.records import read_runs
from fairseq_lrpe.utils.errors import UserError

START = "$ fairseq-train data\n"
OVERFLOW = "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.\n"
REASONS = [
    ("", None),
    ("Stopping training due to num_updates: 20 >= max_update: 20\n", None),
    (
        "Stopping training due to cumulative_training_time: 2.1 > stop_time_hours: 2 hour(s)\n",
        "stop_time_hours",
    ),
    ("early stop since valid performance hasn't improved for last 3 runs\n", "patience"),
    ("stopping training because current learning rate (1e-09) is smaller than or equal\n", "stop_min_lr"),
    ("FloatingPointError: gradients are Nan/Inf\n", "diverged"),
    (f"[rank1]: {OVERFLOW}", "diverged"),
    (f"FloatingPointError: AMP: {OVERFLOW.partition(': ')[2]}", "diverged"),
    ("FloatingPointError: Fatal error: gradients are inconsistent between workers.\n", None),
    (f"{OVERFLOW}{START}", None),  # the training was started again
]


@pytest.mark.parametrize("text, reason", REASONS)
def test_reasons_in_a_log(text, reason, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"{START}{text}INFO | fairseq_cli.train | done training in 3.1 seconds\n")
    assert endings.last_reason([log]) == reason
    other = tmp_path / "train-node2.log"
    other.write_text(f"{START}INFO | fairseq.distributed.utils | initialized host node2 as rank 1\n")
    for logs in ([log, other], [other, log]):
        assert endings.last_reason(logs) == reason


def test_limit_counts_from_the_start_of_each_command():
    checkpoint = {"extra_state": {"previous_training_time": 1800.0}}
    for words in (["--stop-time-hours", "2"], ["--stop-time-hours=2"]):
        assert endings.with_time_limit(words, checkpoint) == [*words, "--stop-time-hours", "2.5"]
        assert endings.with_time_limit(words, None) == words
    assert endings.with_time_limit(["--max-update", "2"], checkpoint) == ["--max-update", "2"]


def words_of(data_bin, folder, *more):
    words = ["lm/mini", "rope", "--cpu", "--results", str(folder), *SMALL_LM, f"data={data_bin}"]
    words += ["train.validate_interval_updates=5", "train.save_interval_updates=5", "updates=30"]
    return [*words, "train.warmup_updates=2", "evaluations.valid=null", *more]


def only_run(folder):
    [record] = read_runs(folder)
    return record


@pytest.mark.slow
def test_time_limit(data_bin, tmp_path):
    """A stopped training is continued by the same command, and then equals an uninterrupted one."""
    limited = words_of(data_bin, tmp_path / "limited", "train.stop_time_hours=1e-9")
    stopped = run_here(train.main, *limited)
    assert stopped.returncode == 1
    message = (
        "train: stopped at 1 of 30 updates by the time limit --stop-time-hours: run the same command again"
    )
    assert stopped.stderr.startswith(message) and "finished" not in stopped.stdout
    assert only_run(tmp_path / "limited").describe_state() == "stopped at 1 of 30"
    longer = words_of(data_bin, tmp_path / "limited", "train.stop_time_hours=9")
    assert "resuming: " in output_of(train.main, *longer)
    output_of(train.main, *words_of(data_bin, tmp_path / "whole"))
    found, expected = (only_run(tmp_path / name) for name in ("limited", "whole"))
    assert found.state == "finished" and found.reached == 30
    assert found.measured["test"]["perplexity"] == expected.measured["test"]["perplexity"]


@pytest.mark.parametrize(
    "reason, overrides, updates",
    [  # with the first, the loss does not change; the second epoch would begin after 22 batches
        ("patience", ["train.patience=2", "train.lr=1e-30"], 15),
        ("max_epoch", ["train.max_epoch=1"], 22),
    ],
)
def test_training_that_ends_early(reason, overrides, updates, data_bin, tmp_path):
    """The number of completed updates is shown, and recorded; the training is not repeated."""
    words = words_of(data_bin, tmp_path, *overrides, "evaluations.test=null")
    text = f"ended early after {updates} of 30 updates ({reason})"
    assert f"\n{text}: {tmp_path}" in output_of(train.main, *words)
    again = output_of(train.main, *words)
    assert again.startswith(f"already {text}: ") and "fairseq-train" not in again
    record = only_run(tmp_path)
    assert (record.state, record.describe_state(), record.length) == ("finished", text, updates)


def test_run_of_version_1_1_that_ended_early_is_continued(data_bin, tmp_path):
    words = words_of(data_bin, tmp_path, "train.stop_time_hours=1e-9")
    assert run_here(train.main, *words).returncode == 1
    folder = only_run(tmp_path).folder
    wrong = {"evaluations": {"test": {"settings": {}, "perplexity": 997.0}}, "finished": "2026-10-01"}
    write_json(folder / "evaluation.json", wrong)
    assert only_run(tmp_path).describe_state() == "stopped at 1 of 30"
    output_of(train.main, *words_of(data_bin, tmp_path))
    assert only_run(tmp_path).measured["test"]["perplexity"] < 900


def test_diverged_trial_is_the_worst(data_bin, tmp_path):
    words = words_of(data_bin, tmp_path, "choose.train.lr=[1e30, 5e-3]")
    assert "best of 2: train.lr=0.005" in output_of(train.main, *words)
    assert output_of(train.main, *words).startswith("already finished: ")
    records = {record.run.changes: record for record in read_runs(tmp_path)}
    [diverged] = [record for record in records.values() if record.is_diverged]
    assert diverged.describe_state().startswith("diverged after ")
    assert math.isnan(diverged.value("test", "perplexity")) and math.isnan(diverged.value("test", "bits"))
    assert diverged.value("valid", "perplexity") is None


def test_run_that_diverged(data_bin, tmp_path):
    """A choice without a trained trial is itself diverged, its seeds count, and nothing can start from it."""
    words = words_of(data_bin, tmp_path, "choose.train.lr=[1e30]")
    assert "\ndiverged after " in output_of(train.main, *words)
    assert output_of(train.main, *words).startswith("already diverged after ")
    shown = output_of(results.main, "--experiment", "lm/mini", "--results", str(tmp_path), "--format", "csv")
    assert ",perplexity,0 updates,1,nan,,1,seed 1 diverged after 0 of 30 updates" in shown
    run = next(record for record in read_runs(tmp_path) if dict(record.run.changes).get("train.lr"))
    own = [word for word in words if not word.startswith("choose")]
    output_of(train.main, *own, "train.lr=1e30")  # not trained again
    assert json.loads((run.folder / "evaluation.json").read_text())["ended"]["reason"] == "diverged"
    assert read(run.folder)["evaluations"]["test"]["settings"]["split"] == "test"


def test_another_node_has_rank_0(tmp_path, monkeypatch):
    """torchrun numbers the nodes, so that the log of the node without the lock can have the metrics."""
    job = job_of("lm/mini", "rope", overrides=["updates=30"], results=tmp_path, nodes=2, gpus=1)
    job.folder.mkdir(parents=True)
    earlier = job.folder / "train-earlier.log"
    earlier.write_text(f"{START}early stop since valid performance hasn't improved for last 3 runs\n{START}")

    def train_on_two_nodes(command, log, on_line, **options):
        entry = json.dumps({"train_loss": "6.4", "train_num_updates": reached})
        with log.open("a") as own, log.with_name("train-node2.log").open("a") as other:
            own.write(f"{START}initialized host node1 as rank 1\n")
            other.write(f"{START}node2 | INFO | train | {entry}\n")

    monkeypatch.setattr(training, "run_command", train_on_two_nodes)
    with locked(job.folder) as job.lock:
        reached = 30
        assert training.train(job, ["torchrun"], run_log.Log(job.folder)) is None
        reached = 20
        message = r"stopped at 20 of 30 updates by an unknown cause, see .*node2\.log"
        with pytest.raises(UserError, match=message):
            training.train(job, ["torchrun"], run_log.Log(job.folder))
