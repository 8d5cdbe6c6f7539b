"""Reflection at a hyperplane."""

from torch import Tensor


def householder(x: Tensor, v: Tensor) -> Tensor:
    """Returns (I − 2 v vᵀ / vᵀv) x for every row x (LRPE TMLR Eq. 73); v (d,) of any length but zero."""
    v = v.to(x.dtype)
    return x - (x @ v).unsqueeze(-1) * (v * (2 / v.dot(v)))
