"""Random float64 tensors, gradients, and a comparison of tensors relative to their largest value."""

import torch
from torch.utils._pytree import tree_leaves


def randn(*shape, seed=0):
    """Returns a float64 tensor of standard normal numbers that depends only on the shape and the seed."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def perturbed(module):
    """Adds noise to all parameters of a module, and returns the module."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module


def randomized(module, scale=1.0):
    """Draws all parameters of a module from N(0, scale²), and returns the module."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=scale)
    return module


def with_gradients(outputs, leaves):
    """Returns tensors and the gradients of a fixed random sum of them, 0 for leaves that they do not use."""
    outputs = tree_leaves(outputs)
    loss = sum((out * randn(*out.shape, seed=3).to(out.device)).sum() for out in outputs)
    return *outputs, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def assert_same(actual, expected, tolerance=1e-10):
    """Asserts that tensors, or nested lists of tensors, are equal up to a tolerance.

    The tolerance is relative to the largest absolute value of the expected tensor, or to 1 if that is larger.
    """
    for ours, theirs in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        scale = theirs.abs().max().clamp(min=1)
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=tolerance, atol=tolerance)
