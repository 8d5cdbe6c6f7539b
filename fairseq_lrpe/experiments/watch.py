"""What is shown of a training while it runs: how far it is, what it measures, how long it will take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fairseq_lrpe.experiments.run_folder import Log, counted, is_locked, read_lines, updates_in
from fairseq_lrpe.files import readable

EVERY = 60  # seconds between two lines, where no line can be rewritten
MEASURES = ("loss", "ppl", "accuracy")  # of the batches of a training, as fairseq calls them


def progress(entries: list[dict], updates: int, log: Path) -> str:
    """Returns in one line how a training of so many updates stands, by its log's entries."""
    inner = next((entry for entry in reversed(entries) if entry["kind"] == "train_inner"), {})
    done = updates_in(entries[-1]) if entries else 0
    parts = [f"{done:,} of {updates:,} updates", *(f"{x} {inner[x]}" for x in MEASURES if x in inner)]
    if inner.get("wps"):
        seconds = (updates - done) * inner["wpb"] / inner["wps"]
        parts += [f"{inner['wps']:,.0f} {counted(inner)}/s", f"{timedelta(seconds=round(seconds))} left"]
    return ", ".join([*parts, f"log {readable(log)}"])


def standing(job) -> str:
    """Returns how the training of a job stands that another process does, or that of its trial."""
    one = next((trial for trial in job.trials() if is_locked(trial.folder)), job)
    entries = read_lines(one.folder / "log.jsonl")
    return f"{one.run}: {progress(entries, one.updates, one.folder / 'train.log')}"


@contextmanager
def watched(name: str, updates: int, log: Log, measure: str) -> Iterator:
    """Yields a function that takes a line of fairseq's into the log, and shows what it says.

    On a terminal one line tells how the training stands; elsewhere it is printed once a minute, with the
    run's ``name``. Every validation is told too, by its ``measure``, such as valid_ppl.
    """
    console = Console(highlight=False, markup=False)  # the line may wrap, what is printed may not
    last = time.monotonic()

    with console.status(Text(progress(log.in_order(), updates, log.raw))) as status:

        def take(line):
            nonlocal last
            entry = log.take(line)
            if entry is None:
                return
            now = progress(log.in_order(), updates, log.raw)
            status.update(Text(now))
            if entry["kind"] == "valid":
                what = measure if measure in entry else "valid_loss"
                told = f"{what.replace('_', ' ')} {entry[what]}"
                console.print(f"    {entry['valid_num_updates']} updates: {told}", soft_wrap=True)
            if not console.is_terminal and time.monotonic() - last >= EVERY:
                console.print(f"{name}: {now}", soft_wrap=True)
                last = time.monotonic()

        yield take
