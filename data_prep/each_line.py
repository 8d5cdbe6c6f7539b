"""A function of each line of a text, on all cores."""

import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from fairseq_lrpe.files import whole_file

LINES = 1000  # that a process takes at a time
_function = None  # of a process


def each_line(function: Callable[[str], str], source: Path, target: Path, workers: int, newline="\n") -> None:
    """Writes ``function`` of each line of ``source``, without its end, to ``target``, which appears whole.

    The same bytes whatever the number of ``workers``. ``newline`` says what ends a line, as ``open`` takes
    it; None: also a carriage return.
    """
    name = f"{target.parent.name}/{target.name}"
    bar = tqdm(total=source.stat().st_size, unit="B", unit_scale=True, desc=name, disable=None)
    pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(function,))
    with (
        source.open(encoding="utf-8", newline=newline) as lines,
        whole_file(target) as part,
        part.open("w", encoding="utf-8", newline="\n") as out,
        pool,
        bar,
    ):
        waiting = deque()
        try:
            while (batch := list(islice(lines, LINES))) or waiting:
                if batch:
                    waiting.append(pool.submit(_apply, batch))
                if not batch or len(waiting) > 2 * workers:  # the whole text does not fit into memory
                    result, read = waiting.popleft().result()
                    out.write(result)
                    bar.update(read)
        except BrokenProcessPool:
            raise ValueError(
                f"a process that read {source} was killed, perhaps for its memory: try fewer --workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(function):
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _function = function


def _apply(lines):
    """Returns what the function makes of the lines, and how many bytes they had."""
    made = "".join(f"{_function(line.removesuffix(chr(10)))}\n" for line in lines)
    return made, sum(len(line.encode()) for line in lines)
