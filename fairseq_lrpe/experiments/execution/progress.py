"""Progress of a run: completed updates, metrics and remaining time."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.run_directory import is_locked
from fairseq_lrpe.experiments.execution.run_files import entry_updates, read_log, speed_unit
from fairseq_lrpe.experiments.execution.run_log import Log
from fairseq_lrpe.utils.files import display_path

REPORT_INTERVAL = 60  # seconds between two lines of progress if the output is not a terminal
MAX_SECONDS = timedelta.max.total_seconds()
METRICS = ("loss", "ppl", "accuracy")  # the metrics of training batches in fairseq's log


def say(job: Job, text: str) -> None:
    """Prints a line about a run, unless it is executed in a thread beside others."""
    if job.stop is None:
        print(text, flush=True)


def describe(entries: list[dict], updates: int, log: Path) -> str:
    """Returns the progress of a training as text: updates, last metrics, speed, remaining time, and log.

    Args:
        entries: the entries of log.jsonl.
        updates: the number of updates after which the training ends.
        log: the path of fairseq's log.
    """
    completed = entry_updates(entries[-1]) if entries else 0
    inner = _last_inner(entries)
    parts = [f"{completed:,} of {updates:,} updates"]
    for name in METRICS:
        if name in inner:
            parts.append(f"{name} {inner[name]}")
    speed = inner.get("wps", 0)
    if speed > 0:
        parts.append(f"{speed:,.0f} {speed_unit(inner)}/s")
        seconds = (updates - completed) * inner.get("wpb", math.nan) / speed
        if abs(seconds) < MAX_SECONDS:  # also if it is not NaN
            parts.append(f"{timedelta(seconds=round(seconds))} left")
    parts.append(f"log {display_path(log)}")
    return ", ".join(parts)


def _last_inner(entries):
    for entry in reversed(entries):
        if entry["kind"] == "train_inner":
            return entry
    return {}


def describe_job(job: Job) -> str:
    """Returns the progress of a run as text, or that of its trial that is being executed."""
    active = job
    for trial in job.trials():
        if is_locked(trial.folder):
            active = trial
            break
    return f"{active.run}: {describe_folder(active.folder, active.updates)}"


def describe_folder(folder: Path, updates: int) -> str:
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    if logs and logs[-1].name.startswith("eval-"):
        return f"evaluating {logs[-1].stem.removeprefix('eval-')}"
    return describe(list(read_log(folder)), updates, folder / "train.log")


@contextmanager
def show_training(job: Job, log: Log) -> Iterator:
    """Yields a function that records a line of fairseq's output in ``log`` and shows the progress.

    On a terminal, a single line is updated. Otherwise, a line is printed at the start and once a minute. Each
    validation has a line of its own. Nothing is shown of a run that is executed in a thread beside others.
    """
    if job.stop is not None:
        yield log.record
        return
    console = Console(highlight=False, markup=False)  # the status is wrapped, printed lines are not
    metric = job.kind.validation_metric(job.cfg)
    last = -math.inf

    with console.status("") as status:

        def record(line):
            nonlocal last
            entry = log.record(line)
            text = describe(log.entries, job.updates, log.path)
            status.update(Text(text))
            if entry and entry["kind"] == "valid":
                shown = metric if metric in entry else "valid_loss"
                result = f"{shown.replace('_', ' ')} {entry[shown]}"
                console.print(f"    {entry['valid_num_updates']} updates: {result}", soft_wrap=True)
            if not console.is_terminal and time.monotonic() - last >= REPORT_INTERVAL:
                console.print(f"{job.run}: {text}", soft_wrap=True)
                last = time.monotonic()

        record("")
        yield record
