"""Orthogonal matrices from parameters without constraints."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.precision import at_least_float32


def cayley(generator: Tensor, size: int) -> Tensor:
    """Returns the orthogonal matrix (I − A)(I + A)⁻¹, (size, size), in float32 or float64.

    A is skew-symmetric, so that I + A is never singular (Cayley 1846).

    Args:
        generator: the entries of A above the diagonal, row by row, (size·(size − 1)/2,).
        size: number of rows.
    """
    generator = at_least_float32(generator)
    upper = constant(upper_triangle, size, device=generator.device)
    matrix = generator.new_zeros(size, size)
    matrix = matrix.index_put(tuple(upper), generator)
    a = matrix - matrix.mT
    identity = torch.eye(size, dtype=a.dtype, device=a.device)
    # Unlike torch.linalg.solve, solve_ex reads no error code from a GPU.
    return torch.linalg.solve_ex(identity + a, identity - a, left=False).result


def upper_triangle(size: int, device: torch.device) -> Tensor:
    """Returns the row and column indices (2, size·(size − 1)/2) of the entries above the diagonal."""
    return torch.triu_indices(size, size, 1, device=device)
