"""Calls and kernels that a GPU's host has to start, and the time that starting them takes.

Small models are bound by the host: each call of an ATen operation takes it about the same time, also if the
operation is a view that starts no kernel.
"""

from torch.utils._python_dispatch import TorchDispatchMode

OPERATION = 0.45e-3
"""Seconds of the forward and backward pass of one operation, beside those of its calls."""
OPERATION_CALL = 10.5e-6
"""Seconds of a call in the forward and backward pass of one operation."""
PASS_CALL = 16.6e-6
"""Seconds of a call in the forward and backward pass of a model."""
UPDATE_CALL = 8e-6
"""Seconds of a call of the optimizer.

These numbers were fitted to times on the host of one H200, see docs/performance.md.
"""
ALLOCATIONS = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"}
WITHOUT_KERNEL = ALLOCATIONS | {"_unsafe_view", "detach", "alias", "lift_fresh", "split", "view", "expand"}
KERNELS = {"constant_pad_nd": 2}
"""Kernels of operations that start several: padding fills and copies."""


class Launches(TorchDispatchMode):
    """Counts calls of ATen operations, and the kernels that they start; views and allocations start none.

    ``detached`` is the number of those calls that detach a tensor, some of which autograd makes only while a
    dispatch mode such as this counter is active.
    """

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.kernels = 0
        self.detached = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.partition("::")[2]
        self.calls += 1
        self.detached += name == "detach"
        if not _is_view(function) and name not in WITHOUT_KERNEL:
            self.kernels += KERNELS.get(name, 1)
        return out


def _is_view(function):
    """Returns whether an operation returns a view of an input that it does not write."""
    for result in function._schema.returns:
        if result.alias_info is not None and not result.alias_info.is_write:
            return True
    return False


def operation_seconds(calls: int) -> float:
    """Returns the host's time of the forward and backward pass of one operation."""
    return OPERATION + OPERATION_CALL * calls


def update_seconds(passes: int, update: int, update_freq: int = 1) -> float:
    """Returns the host's time of an update of a model.

    Args:
        passes: calls of the forward and backward pass of one batch.
        update: calls of the optimizer.
        update_freq: number of batches of an update on each GPU.
    """
    return PASS_CALL * passes * update_freq + UPDATE_CALL * update
