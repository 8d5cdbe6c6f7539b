"""Random float64 tensors and comparison of results."""

import torch
from torch.utils._pytree import tree_leaves


def random(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def assert_same(actual, expected, tolerance=1e-10):
    """Asserts equality up to ``tolerance`` times the largest absolute value."""
    for ours, theirs in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        scale = theirs.abs().max().clamp(min=1)
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=tolerance, atol=tolerance)
