"""A function of many things, on all cores."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

_function = None  # of a process


def in_order(function: Callable, items: Iterable, workers: int) -> Iterator:
    """Yields ``function`` of each of the ``items``, in their order, whatever the number of ``workers``.

    Only a few are taken ahead, so that there may be more than fit into memory, or no end of them.
    """
    waiting = deque()
    with ProcessPoolExecutor(workers, initializer=_start, initargs=(function,)) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(_apply, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise ValueError("a process was killed, perhaps for its memory: try fewer --workers") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(function):
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _function = function


def _apply(item):
    return _function(item)
