"""Support of ``torch.func``, ``torch.export`` and second derivatives in hand-written autograd functions.

Each such function has a method ``plain``, which computes the same result with operations that torch can
differentiate, batch and export. ``plain`` replaces the hand-written passes where these are not valid.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_lrpe.ops.torch_internals import is_batched_gradient, is_in_transform


def is_exporting() -> bool:
    """Returns whether ``torch.export`` is tracing; values and the batch size can then be unknown."""
    # torch 2.6 does not have `torch.compiler.is_exporting`.
    return torch.compiler.is_compiling() and getattr(torch.compiler, "is_exporting", bool)()


def is_transformed() -> bool:
    """Returns whether ``torch.func``, ``torch.export`` or forward-mode AD transforms the current function."""
    if torch.compiler.is_compiling():
        return is_exporting()
    return is_in_transform()


def apply(function: Any, *args) -> Any:
    """Returns ``function.apply(*args)``, or ``function.plain(*args)`` if :func:`is_transformed`."""
    return function.plain(*args) if is_transformed() else function.apply(*args)


def recompute(function: Callable, *args, **options) -> Any:
    """Returns ``function(*args)``, whose activations are recomputed in the backward pass, not stored.

    The activations are stored if :func:`is_transformed`, because ``torch.func`` does not support
    ``checkpoint``.
    """
    if is_transformed() or not torch.is_grad_enabled():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False, **options)


class KeepLayout(torch.autograd.Function):
    """Identity whose backward pass gives the gradient the memory layout of the input."""

    @staticmethod
    def plain(x):
        return x.view_as(x)

    @staticmethod
    def forward(ctx, x):
        ctx.strides = x.stride()
        return KeepLayout.plain(x)

    @staticmethod
    def backward(ctx, g):
        return g if g.stride() == ctx.strides else g.new_empty_strided(g.shape, ctx.strides).copy_(g)


def with_zero_gradient(y: Tensor, x: Tensor) -> Tensor:
    """Returns y, with a gradient of zeros for x: ``DistributedDataParallel`` refuses missing gradients."""
    return torch.where(y.new_ones((), dtype=torch.bool), y, x.sum().to(y.dtype))


def needs_plain_backward(*gradients: Tensor) -> bool:
    """Returns whether the gradients of a backward pass are themselves differentiated or batched."""
    if torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() or is_transformed():
        return True
    return any(is_batched_gradient(gradient) for gradient in gradients)


def plain_gradients(
    plain: Callable, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Returns the gradients with respect to the inputs of ``plain``, as differentiable tensors.

    Args:
        plain: function of the inputs that returns a tensor or a tuple of tensors and None.
        inputs: inputs of ``plain``; the gradient is None for None and for tensors that do not require one.
        gradients: gradients with respect to the outputs; None means zero.
    """
    with torch.enable_grad():
        # Of views, because an input can also be a function of another one.
        inputs = [None if x is None else x.view_as(x) for x in inputs]
        needed = [x for x in inputs if x is not None and x.requires_grad]
        outputs = plain(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None and y.requires_grad]
        if not pairs:
            return [None] * len(inputs)
        outputs, gradients = zip(*pairs, strict=True)
        result = torch.autograd.grad(outputs, needed, gradients, create_graph=True, allow_unused=True)
    found = iter(result)
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]
