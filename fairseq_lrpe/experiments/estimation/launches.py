"""Calls and kernels that the host of a GPU has to start, and the time that the host needs to start them.

Small models are bound by the host: each call of an ATen operation takes the host about the same time, even if
the operation is a view that starts no kernel.
"""

from torch.utils._python_dispatch import TorchDispatchMode

OPERATION = 0.45e-3
"""Seconds of the forward and backward pass of one operation, in addition to those of its calls."""
OPERATION_CALL = 10.5e-6
"""Seconds of a call in the forward and backward pass of one operation."""
PASS_CALL = 16.6e-6
"""Seconds of a call in the forward and backward pass of a model."""
UPDATE_CALL = 8e-6
"""Seconds of a call of the optimizer.

These numbers were fitted to times on the host of one H200, see docs/gpu.md.
"""
ALLOCATIONS = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"}
WITHOUT_KERNEL = ALLOCATIONS | {"_unsafe_view", "detach", "alias", "lift_fresh", "split", "view", "expand"}
KERNELS = {"constant_pad_nd": 2}
"""{operation that starts several kernels: their number}; padding fills and copies."""


class Launches(TorchDispatchMode):
    """Dispatch mode that counts calls of ATen operations, and the kernels that these start.

    Views and allocations start no kernels. ``detached`` is the number of calls that detach a tensor; autograd
    makes some of them only while a dispatch mode such as this counter is active.
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
    """Returns whether an operation returns a view of an input without writing to this input."""
    for result in function._schema.returns:
        if result.alias_info is not None and not result.alias_info.is_write:
            return True
    return False


def operation_seconds(calls: int) -> float:
    """Returns the seconds that the host needs for the forward and backward pass of one operation.

    ``calls`` is the number of calls of ATen operations in both passes.
    """
    return OPERATION + OPERATION_CALL * calls


def update_seconds(passes: int, update: int, update_freq: int = 1) -> float:
    """Returns the seconds that the host needs for an update of a model.

    Args:
        passes: number of calls in the forward and backward pass of one batch.
        update: number of calls of the optimizer.
        update_freq: number of batches of an update on each GPU.
    """
    return PASS_CALL * passes * update_freq + UPDATE_CALL * update
