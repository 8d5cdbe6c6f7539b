"""Sandwich: the products of sinusoidal position embeddings as a bias."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.distance_bias import DistanceBias
from fairseq_lrpe.ops.float64 import to_float64

WIDTH = 128
"""Width d̄ of the position embeddings, which the paper keeps for models of every size."""


@register_encoding("sandwich")
class Sandwich(DistanceBias):
    """Adds H/(8h) Σ_m cos((i−j) / 10000^(2m/128)), m < 64, h = 1..H, to the scaled scores (Chi et al. 2023).

    The sum is the product of two sinusoidal position embeddings of width 128. The sum is divided by 8h/H, the
    exponent of ALiBi's slope of head h. The encoding has no parameters. Its cost is that of
    :class:`DistanceBias`, with 64 cosines for each distance. The frequencies start at 1, as in the listing of
    the paper.
    """

    def values(self, distance: Tensor) -> Tensor:
        # Rounding a far distance times a frequency to float32 would change the cosine.
        x = to_float64(distance)
        frequencies = 10000.0 ** (-2 * torch.arange(WIDTH // 2, dtype=x.dtype, device=x.device) / WIDTH)
        heads = torch.arange(1, self.num_heads + 1, dtype=x.dtype, device=x.device)
        products = (x[:, None] * frequencies).cos().sum(-1)
        return (products * self.num_heads / (8 * heads[:, None])).to(distance.device, distance.dtype)
