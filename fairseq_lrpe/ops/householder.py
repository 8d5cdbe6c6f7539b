"""Householder reflection."""

from torch import Tensor


def householder(x: Tensor, v: Tensor) -> Tensor:
    """Returns (I − 2 v vᵀ / vᵀv) x for every row x of (..., d) (LRPE TMLR Eq. 73); v (d,) is non-zero."""
    v = v.to(x.dtype)
    return x - (x @ v).unsqueeze(-1) * (v * (2 / v.dot(v)))
