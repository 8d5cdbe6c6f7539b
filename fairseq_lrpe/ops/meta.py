"""The meta device in place of a GPU, so that a GPU's operations can be counted without one."""

from collections.abc import Iterator
from contextlib import contextmanager

_replaces_gpu = False


def meta_replaces_gpu() -> bool:
    """Returns whether a block of :func:`meta_as_gpu` is active."""
    return _replaces_gpu


@contextmanager
def meta_as_gpu() -> Iterator[None]:
    """Computes on the meta device in the same operations as on a GPU.

    Meta tensors have float64 as on a GPU, and constants are computed once and then read from their caches,
    although the operations are counted by a dispatch mode, in which they would otherwise be computed anew.
    The block affects all threads.
    """
    global _replaces_gpu
    before = _replaces_gpu
    _replaces_gpu = True
    try:
        yield
    finally:
        _replaces_gpu = before
