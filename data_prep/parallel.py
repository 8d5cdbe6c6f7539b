"""Parallel mapping that preserves the order of items or of the lines of a file, and progress bars."""

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import atomic_file, read_lines
from fairseq_lrpe.utils.subprocesses import die_with_parent

LINES = 1000  # lines per task
TASKS = 4  # tasks per process that are submitted at once
DELAY = 5  # seconds until a progress bar is shown

_function = None  # the function that this worker process applies


def progress(iterable: Iterable | None, description: str, unit: str = "B", **options) -> tqdm:
    """Returns a progress bar of tqdm that is shown only on a terminal and disappears at the end."""
    options = {"unit": unit, "unit_scale": unit == "B", **options}
    return tqdm(iterable, description, disable=None, leave=False, delay=DELAY, **options)


def ordered_map(function: Callable, items: Iterable, workers: int, chunk: int = 1) -> Iterator:
    """Yields ``function(item)`` for each item in the order of ``items``, computed by ``workers`` processes.

    A process gets ``chunk`` items at a time. Only a few chunks are read ahead, so that ``items`` may be
    infinite.
    """
    items = iter(items)
    with _new_pool(workers, function) as pool:
        while batch := list(islice(items, TASKS * workers * chunk)):
            yield from pool.map(_apply, batch, chunksize=chunk)


def _new_pool(workers, function):
    try:
        return ProcessPoolExecutor(workers, initializer=_start, initargs=(function, die_with_parent()))
    except OSError as error:
        wrong = f"the semaphores of {workers} processes do not fit into /dev/shm ({error.strerror})"
        raise UserError(f"{wrong}: enlarge /dev/shm, as with docker's --shm-size") from None


def _start(function, die_with_parent):
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    _function = function


def _apply(item):
    return _function(item)


def map_lines(function: Callable[[str], str], source: Path, target: Path, workers: int) -> None:
    """Writes ``function(line)`` for each line of ``source`` to the file ``target``, unless it exists."""
    if target.exists():
        return
    with (
        atomic_file(target) as part,
        part.open("w", encoding="utf-8", newline="\n") as out,
        closing(ordered_map(function, read_lines(source), workers, LINES)) as texts,
    ):
        for text in progress(texts, f"{target.parent.name}/{target.name}", "lines"):
            out.write(f"{text}\n")
