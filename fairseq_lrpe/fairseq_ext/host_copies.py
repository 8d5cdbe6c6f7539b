"""Copies of a batch's tokens on the CPU, from which decisions are made without waiting for a GPU.

fairseq collates batches on the CPU and moves them to the GPU. A decision such as whether a batch contains
padding would read a number from the GPU, which waits until everything that was started before is finished.
"""

from collections.abc import Callable

import torch
from fairseq import utils
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_copies = WeakIdKeyDictionary()
"""{tensor on a GPU: (its version, tensor with the same values on the CPU)}"""


def move_to_cuda(sample, device: torch.device | int | None = None):
    """Moves all tensors of a batch to a GPU like fairseq's function, and keeps copies of token tensors."""
    device = torch.cuda.current_device() if device is None else device
    return utils.apply_to_sample(lambda x: _moved(x, device), sample)


def on_host(x: Tensor) -> Tensor:
    """Returns a tensor with the values of x: a known copy on the CPU, or x itself.

    If x was not moved by :func:`move_to_cuda`, or was modified since, or while torch.compile traces, x itself
    is returned, and reading its values waits for its device.
    """
    if torch.compiler.is_compiling():
        return x
    version, copy = _copies.get(x, (None, x))
    return copy if version is None or version == x._version else x


def on_both(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Returns ``function(x)``, whose copy on the CPU is computed from the copy of x, if there is one."""
    out = function(x)
    copy = on_host(x)
    if copy is not x:
        _remember(out, function(copy))
    return out


def _moved(x, device):
    moved = x.to(device=device, non_blocking=True)
    is_new = moved is not x and x.device.type == "cpu"
    if is_new and x.dtype == torch.long:  # images are larger, and nothing is decided from them
        _remember(moved, x)
    return moved


def _remember(x, copy):
    if not x.is_inference():  # whose modifications are not counted
        _copies[x] = x._version, copy
