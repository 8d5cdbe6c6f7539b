"""Counts the operations that a GPU would have to start, on a CPU."""

from torch.utils._python_dispatch import TorchDispatchMode

ALLOCATIONS = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"}
WITHOUT_KERNEL = ALLOCATIONS | {"_unsafe_view", "detach", "alias", "lift_fresh", "split", "view", "expand"}
KERNELS = {"constant_pad_nd": 2}
"""Kernels of operations that start several: padding fills and copies."""


class Launches(TorchDispatchMode):
    """Counts ATen calls, and the kernels that they start; views and allocations start none."""

    def __init__(self):
        super().__init__()
        self.calls, self.kernels = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.partition("::")[2]
        aliases = [result.alias_info for result in function._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        self.calls += 1
        if not is_view and name not in WITHOUT_KERNEL:
            self.kernels += KERNELS.get(name, 1)
        return out
