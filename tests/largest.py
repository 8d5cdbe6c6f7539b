"""Measures the sizes of tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor, and of all tensors, also in the backward pass."""

    numel = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if torch.is_tensor(x):
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
                self.total += x.numel()
        return out
