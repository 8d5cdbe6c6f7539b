"""Caches of tensors that depend on neither parameters nor inputs."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.meta import meta_replaces_gpu
from fairseq_lrpe.ops.torch_internals import has_dispatch_mode, outside_modes, without_dispatch_modes


def is_tracing() -> bool:
    """Returns whether tensors may lack values, as in torch.compile, torch.export and all dispatch modes.

    Modes on the meta device in place of a GPU count the operations of a GPU, on which nothing is traced.
    """
    return torch.compiler.is_compiling() or (has_dispatch_mode() and not meta_replaces_gpu())


def _compute(function, arguments, device, dtype):
    with outside_modes():
        result = function(*arguments, device="cpu").to(device=device, dtype=dtype)
    _results[result] = True
    return result


_results = WeakIdKeyDictionary()
"""The tensors that do not change, results of :class:`Constants` and :func:`derived`."""


class Constants:
    """Cache of tensors that functions compute on the CPU and that are moved to a device.

    Results are computed outside of inference mode, transforms of torch.func and ``torch.device`` contexts,
    and can be used in any of them. While torch traces or a dispatch mode such as ``FakeTensorMode`` is
    active, the function is called in this mode, on the device if the device has float64, so that compiled
    programs wait for no copy; the result is not stored. A copy of the cache is empty.

    Args:
        maxsize: maximum number of results; the least recently used one is replaced.
    """

    def __init__(self, maxsize: int):
        self.maxsize = maxsize
        self._cached = functools.lru_cache(maxsize)(_compute)

    def __call__(
        self,
        function: Callable[..., Tensor],
        *arguments,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Returns ``function(*arguments)`` on the device.

        Args:
            function: a function that creates a tensor on its keyword argument ``device`` and depends on its
                arguments only, not on the default dtype. The function must be the same object in every call,
                because it is part of the key.
            *arguments: arguments of the function, which must be hashable.
            device: device of the result.
            dtype: dtype of the result, by default that of the function's result.
        """
        if is_tracing():
            computing = float64_options(device)["device"]
            return function(*arguments, device=computing).to(device=device, dtype=dtype)
        return self._cached(function, arguments, device, dtype)

    def __reduce__(self):
        return Constants, (self.maxsize,)


constant = Constants(maxsize=32)
"""The cache that all modules share; see :class:`Constants`."""


def derived(function: Callable, tensor: Tensor, *arguments) -> Any:
    """Returns ``function(tensor, *arguments)``, from a cache if ``tensor`` never changes.

    Args:
        function: a function that returns a tensor or a tuple of tensors.
        tensor: any tensor. Results are cached if :class:`Constants` or this function has returned it.
        *arguments: further arguments, which must be hashable.
    """
    if is_tracing() or tensor not in _results:
        return function(tensor, *arguments)
    return _derived(function, tensor, arguments)


@functools.lru_cache(64)  # two for each layer, if layers have different decays
def _derived(function, tensor, arguments):
    with outside_modes():
        result = function(tensor, *arguments)
    for x in [result] if isinstance(result, Tensor) else result:
        if isinstance(x, Tensor):
            _results[x] = True
    return result


def normal_noise(seed: int, *shape: int, device: torch.device | str) -> Tensor:
    """Returns standard normal noise in float32 that depends on the arguments, not on torch's random state.

    The noise is drawn on the CPU. An exported or traced program contains it as a constant.
    """
    if torch.compiler.is_dynamo_compiling():
        return _compiled_noise(seed, shape).to(device)
    tracing = is_tracing()
    with without_dispatch_modes() if tracing else contextlib.nullcontext(), outside_modes():
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(shape, generator=generator, dtype=torch.float32)
    noise = torch.ops.aten.lift_fresh(noise) if tracing else noise  # as torch.tensor does
    return noise.to(device)


# The operator has a schema because torch 2.4 cannot infer that of a sequence.
@torch.library.custom_op(
    "fairseq_lrpe::normal_noise", mutates_args=(), schema="(int seed, int[] shape) -> Tensor"
)
def _compiled_noise(seed, shape):
    """Computes :func:`normal_noise` in compiled programs, which may overwrite the result."""
    return constant(normal_noise, seed, *shape, device="cpu").clone()


@_compiled_noise.register_fake
def _(seed, shape):
    return torch.empty(shape, dtype=torch.float32, device="cpu")
