"""Lists what copies between the CPU and a GPU or waits for a GPU, with meta tensors in place of a GPU's."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VALUES = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique_dim", "_unique2"}
"""Operations whose results the CPU needs before it can continue."""
INDEXING = {"index", "index_put", "index_put_"}


class Transfers(TorchDispatchMode):
    """Lists operations that copy between the CPU and the device, and those that read from the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        name = function._schema.name.partition("::")[2]
        on_device = any(x.is_meta for x in inputs)
        masks = any(x.dtype in (torch.bool, torch.uint8) for x in inputs[1:])
        if on_device and (name in VALUES or (name in INDEXING and masks)):
            self.found.append(f"{name} reads from the device")
            raise RuntimeError(self.found[-1])
        out = function(*args, **(kwargs or {}))
        outputs = {x.device.type for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        if len({x.device.type for x in inputs if x.dim()} | outputs) > 1:
            self.found.append(str(function))
        return out
