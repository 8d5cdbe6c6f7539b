"""Runs the parts of an operation on the CPU at the same time, each in a Python thread of its own.

torch starts and joins its threads in every operation. If another process uses the same cores, each of these
joins waits for the thread that shares its core, so that a sequence of hundreds of small operations becomes
several times slower. Here, the threads are joined once for the whole sequence.
"""

import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import Tensor

from fairseq_lrpe.ops.torch_internals import has_dispatch_mode

_MIN_ELEMENTS = 2**18
"""Number of elements below which starting the parts takes longer than they save."""
_MIN_DENORMAL = 5e-324


def split(x: Tensor) -> list[tuple[slice, slice]]:
    """Splits the batch and the heads of x (B, H, ..) into parts for :func:`run`: slices of both dimensions.

    There are at most as many parts as torch has threads. There is one part for small tensors, and on other
    devices than the CPU.
    """
    batch, heads = x.shape[:2]
    if x.device.type != "cpu" or x.numel() < _MIN_ELEMENTS:
        return [(slice(0, batch), slice(0, heads))]
    threads = torch.get_num_threads()
    grids = [(min(n, batch), min(threads // n, heads)) for n in range(threads, 0, -1)]
    across, down = min(grids, key=lambda grid: math.ceil(batch / grid[0]) * math.ceil(heads / grid[1]))
    return list(itertools.product(_slices(batch, across), _slices(heads, down)))


def _slices(length, count):
    """Splits a dimension into consecutive slices whose lengths differ by at most 1."""
    ends = [length * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def run(function: Callable, parts: Sequence) -> list:
    """Returns ``function(part)`` for each part; call it where gradients are not recorded.

    Several parts are computed at the same time if torch has several threads and no dispatch mode is active.
    The operations of a part then use one thread, and an exception is raised after all parts have ended.
    """
    # Modes that count or replace operations, such as FlopCounterMode, apply to the current thread only.
    if len(parts) == 1 or torch.get_num_threads() == 1 or has_dispatch_mode():
        return [function(part) for part in parts]
    # Both settings are local to a thread. Denormal numbers that are not flushed to 0 are slow.
    inference = torch.is_inference_mode_enabled()
    flush_denormal = _MIN_DENORMAL * 1.0 == 0.0

    def run_part(part):
        torch.set_flush_denormal(flush_denormal)
        with torch.inference_mode(inference), torch.no_grad():
            return function(part)

    pool = _pool(torch.get_num_threads())
    futures = [pool.submit(run_part, part) for part in parts]
    wait(futures)
    return [future.result() for future in futures]


@functools.cache
def _pool(threads):
    """Returns a pool whose threads execute torch's operations without further threads."""
    started = threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, "fairseq_lrpe")

    def start():
        # Start a second thread of OpenMP, because libgomp waits without spinning if it has more threads than
        # cores (GCC manual, GOMP_SPINCOUNT). Spinning threads would keep the cores busy between operations.
        torch.set_num_threads(2)
        torch.zeros(2**17).add_(1)
        torch.set_num_threads(1)
        started.wait()

    for _ in range(threads):
        pool.submit(start)
    started.wait()
    torch.set_num_threads(threads)  # each call has also set the number of threads that start later
    return pool


os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has none of these threads
