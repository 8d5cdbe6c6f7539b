"""A function of each line of a text, on all cores."""

import os
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from tqdm import tqdm

from data_prep import door

LINES = 1000  # that a process takes at a time
_function = None  # of a process


def each_line(function, source, target, workers, newline="\n"):
    """``target``: ``function`` of each line of ``source``, without its end, as a line; it appears whole.

    The same bytes whatever the number of ``workers``. ``newline`` says what ends a line, as ``open`` takes
    it; None: also a carriage return.
    """
    part = target.with_name(target.name + ".part")
    name = f"{target.parent.name}/{target.name}"
    bar = tqdm(total=source.stat().st_size, unit="B", unit_scale=True, desc=name, disable=None)
    pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(function,))
    text = {"encoding": "utf-8", "newline": newline}
    with source.open(**text) as lines, part.open("w", encoding="utf-8", newline="\n") as out, pool, bar:
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
            raise door.BadInput(
                f"a process that read {source} was killed, perhaps for its memory: try fewer --workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    os.replace(part, target)


def _start(function):
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _function = function


def _apply(lines):
    """(what the function makes of the lines, the bytes they had)."""
    made = "".join(f"{_function(line.removesuffix(chr(10)))}\n" for line in lines)
    return made, sum(len(line.encode()) for line in lines)
