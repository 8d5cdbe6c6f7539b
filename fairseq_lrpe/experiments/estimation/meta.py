"""Measures modules on torch's meta device, on which tensors have shapes but no numbers.

A layer of any size takes milliseconds. FLOPs are those of the matrix products that run in the forward and
the backward pass, also inside autograd functions and checkpoints. Memory is that of the tensors that exist at
the same time. Dropout and ``scaled_dot_product_attention`` are those of GPUs: masks of one byte, and a kernel
that keeps no attention weights.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from fairseq_lrpe.ops import float64

COMPILER = "torch._dynamo"
aten = torch.ops.aten


def empty(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Returns a tensor of the same shape; on the meta device, torch.empty_like is slow."""
    return x.new_empty(x.shape, dtype=dtype)


def _attention_backward_flops(grad, q, k, v, *_, **__):
    # Without the scores, which the kernel computes again.
    return 2 * sdpa_flop_count(q.shape, k.shape, v.shape)


FLOPS = {
    **flop_registry,
    aten.baddbmm_: flop_registry[aten.baddbmm],
    aten._scaled_dot_product_efficient_attention_backward: _attention_backward_flops,
}
"""{operator: function for its FLOPs}"""

SHAPES = {
    # The meta device does not have these: a dropout mask, a number that is read, and indices (all of them).
    aten.native_dropout.default: lambda x, *_: (empty(x), empty(x, torch.bool)),
    aten._local_scalar_dense.default: lambda x: 0.0,
    aten.nonzero.default: lambda x: x.new_empty(x.numel(), x.dim(), dtype=torch.long),
    # These are slow on it.
    aten.native_layer_norm.default: lambda x, *_: (empty(x), *x.new_empty(2, *x.shape[:-1], 1).unbind()),
    aten.native_layer_norm_backward.default: lambda _, x, *rest: (empty(x), empty(rest[3]), empty(rest[4])),
    aten.native_dropout_backward.default: lambda x, *_: empty(x),
    aten.gelu.default: lambda x, *_, **__: empty(x),
    aten.gelu_backward.default: lambda _, x, **__: empty(x),
    aten.clamp.default: lambda x, *_: empty(x),
    aten.mm.default: lambda a, b: a.new_empty(len(a), b.size(1)),
    aten.addmm.default: lambda _, a, b: a.new_empty(len(a), b.size(1)),
    aten.bmm.default: lambda a, b: a.new_empty(*a.shape[:2], b.size(2)),
}
"""{operator: function for its results}"""


@dataclass(frozen=True)
class Cost:
    """The cost of a forward and a backward pass.

    Args:
        flops: FLOPs of the matrix products.
        kept: bytes from the forward to the backward pass, with the output but without the input.
        peak: largest number of bytes at a time, without the input, parameters and gradients of parameters.
    """

    flops: int = 0
    kept: int = 0
    peak: int = 0


class CostMode(TorchDispatchMode):
    """Counts the FLOPs of operators, and the bytes of the tensors that they create while these exist."""

    def __init__(self, existing: list[Tensor]):
        super().__init__()
        self.flops = self.current = self.peak = 0
        self.storages = {x.untyped_storage()._cdata for x in existing}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = SHAPES[func](*args, **kwargs) if func in SHAPES else func(*args, **kwargs)
        if count := FLOPS.get(func.overloadpacket):
            self.flops += count(*args, **kwargs, out_val=out)
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return out

    def _add(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.storages:
            self.storages.add(key)
            self.current += size
            self.peak = max(self.peak, self.current)
            weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key, size):
        self.storages.remove(key)
        self.current -= size


def _dropout(x, p=0.5, training=True, inplace=False):
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.size(-2))
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, dropout_p, is_causal)[0]


def measure(function: Callable[..., Tensor], module: nn.Module, *inputs: Tensor) -> Cost:
    """Returns the cost of ``function(*inputs)``, which uses the module, and of its backward pass.

    The parameters already have gradients, as in all batches of an update but the first.
    """
    parameters = list(module.parameters())
    for parameter in parameters:
        parameter.grad = empty(parameter)
    mode = CostMode([*inputs, *module.buffers(), *parameters, *(parameter.grad for parameter in parameters)])
    on_gpus = patch.multiple(F, dropout=_dropout, scaled_dot_product_attention=_attention)
    with_float64 = patch.object(float64, "FLOAT64_DEVICES", (*float64.FLOAT64_DEVICES, "meta"))
    # autocast, which our models disable in places, does not exist on the meta device.
    without_autocast = patch.object(torch, "autocast", lambda *_, **__: nullcontext())
    with without_compiler(), on_gpus, with_float64, without_autocast, mode:
        out = function(*inputs)
        kept = mode.current
        out.backward(empty(out))
    return Cost(mode.flops, kept, mode.peak)


class CompilerStub(SimpleNamespace):
    """What torch needs of its compiler in order not to compile; for other attributes, it is imported."""

    config = SimpleNamespace(error_on_nested_fx_trace=False)

    @staticmethod
    def disable(function, *_, **__):
        return function

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        del sys.modules[COMPILER]
        return getattr(import_module(COMPILER), name)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keeps torch from importing its compiler, which takes seconds, to exclude functions from compilation."""
    stub = CompilerStub()
    sys.modules.setdefault(COMPILER, stub)
    try:
        yield
    finally:
        if sys.modules[COMPILER] is stub:
            del sys.modules[COMPILER]


@contextmanager
def building() -> Iterator[None]:
    """Builds modules on the meta device, without the initialization of their parameters."""

    def skip(tensor, *_, **__):
        return tensor

    names = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    without_initialization = patch.multiple(nn.init, **dict.fromkeys(names, skip))
    without_numbers = patch.multiple(Tensor, **dict.fromkeys(("normal_", "uniform_", "cpu"), skip))
    with without_compiler(), without_initialization, without_numbers, torch.device("meta"):
        yield
