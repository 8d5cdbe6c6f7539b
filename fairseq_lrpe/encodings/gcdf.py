"""Gaussian cumulative distribution function encoding (GCDF)."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.xl import XL
from fairseq_lrpe.ops.float64 import float64_options


def gaussian_cdfs(distance: Tensor, width: int) -> Tensor:
    """Returns Φ(x/σ_k) of n distances x, (n, width) in float64, with σ_k = width^(k/width), k = 1..width."""
    k = torch.arange(1, width + 1, **float64_options(distance.device))
    return torch.special.ndtr(distance[:, None] / width ** (k / width))


@register_encoding("gcdf", lambda_="GCDF's scale factor λ")
class GCDF(XL):
    """Encoding ``xl`` with R_x^k = λ Φ(x/σ_k), σ_k = E^(k/E), k = 1..E (Qu et al. 2021, Eqs. 14-15).

    Φ is the standard normal distribution function: Eq. 15 is λ times the integral up to x of the normal
    density with standard deviation σ_k. λ is 4 in the paper's footnote 6. W_r, u, v and the cost are those of
    ``xl``.

    Where the paper is ambiguous, the index k starts at 1 (as in its figures and Eq. 19), and E is the model's
    width d_model, not the head dimension.
    """

    table = staticmethod(gaussian_cdfs)

    def __init__(self, *, lambda_: float = 4.0, **shared):
        super().__init__(**shared)
        if lambda_ <= 0:
            raise ValueError(f"gcdf needs a positive scale factor lambda, not {lambda_}")
        self.amplitude = lambda_
