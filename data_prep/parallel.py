"""Functions that map items or the lines of a file in parallel and keep their order."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from fairseq_lrpe.utils.files import atomic_file, read_lines
from fairseq_lrpe.utils.subprocesses import die_with_parent

LINES = 1000  # lines per task

_function = None  # the function that this worker process applies


def ordered_map(function: Callable, items: Iterable, workers: int) -> Iterator:
    """Yields ``function(item)`` in the order of ``items``, computed by ``workers`` processes.

    Only a few items are read ahead, so ``items`` may be larger than memory or infinite. The worker processes
    end when this process ends.

    Raises:
        ValueError: If a worker process is killed.
    """
    pending = deque()
    with ProcessPoolExecutor(workers, initializer=_start, initargs=(function, die_with_parent())) as pool:
        try:
            for item in items:
                pending.append(pool.submit(_apply, item))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise ValueError(
                "a worker process was killed, perhaps out of memory: try fewer --workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
    name = f"{target.parent.name}/{target.name}"
    with (
        closing(read_lines(source)) as lines,
        atomic_file(target) as part,
        part.open("w", encoding="utf-8", newline="\n") as out,
        closing(ordered_map(partial(_map_batch, function), _batches(lines), workers)) as results,
        tqdm(total=source.stat().st_size, unit="B", unit_scale=True, desc=name, disable=None) as bar,
    ):
        for text, size in results:
            out.write(text)
            bar.update(size)


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


def _map_batch(function, lines):
    """Returns the mapped lines as one text, and the size of the original lines in bytes."""
    mapped = "".join(f"{function(line)}\n" for line in lines)
    return mapped, sum(len(line.encode()) + 1 for line in lines)
