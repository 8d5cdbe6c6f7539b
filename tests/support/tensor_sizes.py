"""Measurement of the sizes of the tensors that a computation creates."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorSizes(TorchDispatchMode):
    """Records the sizes of the outputs of all operations in a context, including backward passes.

    Attributes:
        largest: number of elements of the largest storage.
        total: sum of the numbers of elements of all outputs.
    """

    largest = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if torch.is_tensor(x):
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
                self.total += x.numel()
        return out
