"""Vectors of norm 1, with bounded gradients."""

import torch
import torch.nn.functional as F
from torch import Tensor

_MIN_NORM = 1e-6
"""Norm below which a vector has no gradient."""


def unit_vectors(x: Tensor) -> Tensor:
    """Returns x / max(‖x‖, 1e-12) for the vectors x (..., d).

    The gradient of a vector is divided by its norm. The gradient is 0 for norms below 1e-6, such as those of
    tokens that are dropped, whose direction has no meaning: a gradient of 1e12 would end the training.
    """
    if not x.requires_grad:
        return F.normalize(x, dim=-1)
    has_gradient = torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True) >= _MIN_NORM
    return F.normalize(torch.where(has_gradient, x, x.detach()), dim=-1)
