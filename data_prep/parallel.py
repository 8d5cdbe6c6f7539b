"""Functions that map items or the lines of a file in parallel and keep their order."""

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

from data_prep.progress import progress
from fairseq_lrpe.utils.files import atomic_file, read_lines
from fairseq_lrpe.utils.subprocesses import die_with_parent

LINES = 1000  # lines per task
TASKS = 4  # tasks per process that are submitted at once

_function = None  # the function that this worker process applies


def ordered_map(function: Callable, items: Iterable, workers: int) -> Iterator:
    """Yields ``function(item)`` in the order of ``items``, computed by ``workers`` processes.

    Only a few items are read ahead, so ``items`` may be larger than memory or infinite.
    """
    items = iter(items)
    with ProcessPoolExecutor(workers, initializer=_start, initargs=(function, die_with_parent())) as pool:
        while batch := list(islice(items, TASKS * workers)):
            yield from pool.map(_apply, batch)


def _start(function, die_with_parent):
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    _function = function


def _apply(item):
    return _function(item)


def map_lines(function: Callable[[str], str], source: Path, target: Path, workers: int) -> None:
    """Applies a function to each line of ``source`` and writes the results to ``target``.

    An existing ``target`` is kept. The output does not depend on the number of workers.

    Args:
        function: Maps a line without its line end to an output line.
        source: UTF-8 text file.
        target: File to write.
        workers: Number of worker processes.
    """
    if target.exists():
        return
    with (
        closing(read_lines(source)) as lines,
        atomic_file(target) as part,
        part.open("w", encoding="utf-8", newline="\n") as out,
        closing(ordered_map(partial(_map_lines, function), _batches(lines), workers)) as texts,
    ):
        out.writelines(progress(texts, f"{target.parent.name}/{target.name}", "thousand lines"))


def map_files(
    function: Callable[[str], str], texts: dict, folder: Path, suffix: str, workers: int
) -> dict[str, Path]:
    """Calls :func:`map_lines` for {split: path} and returns {split: path of ``folder``/SPLIT.``suffix``}."""
    targets = {split: folder / f"{split}.{suffix}" for split in texts}
    for split, target in targets.items():
        map_lines(function, texts[split], target, workers)
    return targets


def _batches(lines):
    while batch := list(islice(lines, LINES)):
        yield batch


def _map_lines(function, lines):
    return "".join(f"{function(line)}\n" for line in lines)
