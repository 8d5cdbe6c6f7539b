"""Progress of a run: its phase, completed updates, metrics and remaining time."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fairseq_lrpe.experiments.execution.run_directory import (
    Log,
    entry_updates,
    is_locked,
    read_lines,
    speed_unit,
)
from fairseq_lrpe.utils.files import display_path

REPORT_INTERVAL = 60  # seconds between two lines of progress if the output is not a terminal
METRICS = ("loss", "ppl", "accuracy")  # the metrics of training batches in fairseq's log
STARTING = "starting fairseq-train"
PHASES = {  # {pattern of a line in train.log: the phase that begins with it}
    re.compile(r"^\$ "): STARTING,
    re.compile(r"\| Start iterating|\| (train_inner|valid) \| \{|\| Saved checkpoint"): "training",
    re.compile(r"\| begin validation on"): "validating",
    re.compile(r"\| Preparing to save checkpoint"): "saving",
    re.compile(r"\| done training"): "ending fairseq-train",
}
TAIL = 65536  # bytes at the end of a log that are searched for the current phase


def phase_of(line: str) -> str | None:
    """Returns the phase that begins with a line of train.log, or None."""
    return next((phase for pattern, phase in PHASES.items() if pattern.search(line)), None)


def current_phase(folder: Path) -> str:
    """Returns the phase of an active run according to the newest log in its folder."""
    with suppress(OSError, ValueError):  # there is no log yet, or it is being replaced
        logs = [*folder.glob("train*.log"), *folder.glob("eval-*.log")]
        newest = max(logs, key=lambda path: path.stat().st_mtime)
        if newest.name.startswith("eval-"):
            return f"evaluating {newest.stem.removeprefix('eval-')}"
        with newest.open("rb") as log:
            log.seek(max(0, newest.stat().st_size - TAIL))
            lines = log.read().decode(errors="replace").splitlines()
        return next(filter(None, map(phase_of, reversed(lines))), "training")
    return "starting"


def describe(entries: list[dict], updates: int, log: Path, phase: str) -> str:
    """Returns one line about a training: its phase, updates, metrics, speed and remaining time."""
    inner = next((entry for entry in reversed(entries) if entry["kind"] == "train_inner"), {})
    completed = entry_updates(entries[-1]) if entries else 0
    parts = [phase, f"{completed:,} of {updates:,} updates"]
    parts += [f"{name} {inner[name]}" for name in METRICS if name in inner]
    if inner.get("wps"):
        seconds = (updates - completed) * inner["wpb"] / inner["wps"]
        parts += [f"{inner['wps']:,.0f} {speed_unit(inner)}/s", f"{timedelta(seconds=round(seconds))} left"]
    return ", ".join([*parts, f"log {display_path(log)}"])


def describe_job(job) -> str:
    """Returns one line about the progress of a job or its current trial, which another process executes."""
    active = next((trial for trial in job.trials() if is_locked(trial.folder)), job)
    return f"{active.run}: {describe_folder(active.folder, active.updates)}"


def describe_folder(folder: Path, updates: int) -> str:
    """Returns one line about the progress of the run in a folder, which another process executes."""
    phase = current_phase(folder)
    if phase.startswith("evaluating"):
        return phase
    return describe(read_lines(folder / "log.jsonl"), updates, folder / "train.log", phase)


@contextmanager
def show_phase(name: str, phase: str) -> Iterator[None]:
    """Shows a phase of the run ``name`` during the block: as a status on a terminal, otherwise as a line."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.print(f"{name}: {phase}", soft_wrap=True)
    with console.status(Text(phase)):
        yield


@contextmanager
def show_training(name: str, updates: int, log: Log, metric: str) -> Iterator:
    """Yields a function that records a line of fairseq's output in the log and shows the progress.

    On a terminal, a single line is updated. Otherwise, a line with the run's ``name`` is printed at the start
    and once a minute. The ``metric`` of each validation, such as valid_ppl, is printed in both cases.
    """
    console = Console(highlight=False, markup=False)  # the status is wrapped, printed lines are not
    last, phase = time.monotonic(), STARTING
    text = describe(log.entries(), updates, log.path, phase)
    if not console.is_terminal:
        console.print(f"{name}: {text}", soft_wrap=True)

    with console.status(Text(text)) as status:

        def record(line):
            nonlocal last, phase
            entry, phase = log.record(line), phase_of(line) or phase
            text = describe(log.entries(), updates, log.path, phase)
            status.update(Text(text))
            if entry and entry["kind"] == "valid":
                shown = metric if metric in entry else "valid_loss"
                result = f"{shown.replace('_', ' ')} {entry[shown]}"
                console.print(f"    {entry['valid_num_updates']} updates: {result}", soft_wrap=True)
            if not console.is_terminal and time.monotonic() - last >= REPORT_INTERVAL:
                console.print(f"{name}: {text}", soft_wrap=True)
                last = time.monotonic()

        yield record
