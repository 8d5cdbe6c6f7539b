"""Uses of torch's private names, which are limited to this module.

Releases of torch may rename them; ``tests/ops/test_torch_internals.py`` fails if one has another meaning.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes


def is_in_transform() -> bool:
    """Returns whether a transform of ``torch.func`` or forward-mode AD is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_batched_gradient(x: Tensor) -> bool:
    """Returns whether x is a gradient of ``torch.autograd.grad(is_grads_batched=True)``.

    Such gradients are batched by the predecessor of vmap, which is not a transform.
    """
    return torch._C._functorch.is_legacy_batchedtensor(x)


def has_dispatch_mode() -> bool:
    """Returns whether a dispatch mode is active, such as ``FakeTensorMode``."""
    return torch._C._len_torch_dispatch_stack() > 0


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Disables inference mode, transforms of ``torch.func`` and ``torch.device`` contexts."""
    with torch.inference_mode(False), torch._C._DisableFuncTorch(), torch._C.DisableTorchFunction():
        yield


def without_dispatch_modes() -> contextlib.AbstractContextManager:
    """Returns a context manager that disables all dispatch modes."""
    return _disable_current_modes()


def mark_constant(function: Any) -> Any:
    """Returns the function, whose result torch.compile stores instead of tracing it.

    ``torch.compiler.assume_constant_result`` does the same, but imports the compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True
    return function


def assert_in_kernel(condition: Tensor, message: str) -> None:
    """Raises a RuntimeError if the condition is False; on a GPU, without waiting for its value."""
    torch._assert_async(condition, message)
