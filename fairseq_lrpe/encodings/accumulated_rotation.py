"""Rotations by sums of angles that depend on the input."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import InputsMixin
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.rotation import complex_dtype, rotate_pairs


class AccumulatedRotation(InputsMixin, Encoding):
    """Base class of encodings that rotate pairs of features by sums of increments over the tokens.

    The increments are the first input features. Sums are computed in float64. Decoding stores the sum of all
    increments, and the inputs that ``left_context`` requires.

    Raises:
        ValueError: for an odd head dimension.
    """

    bidirectional = False
    rotated_features = "pairs"

    def __init__(self, **shared):
        super().__init__(**shared)
        if self.head_dim % 2:
            raise ValueError(
                f"{self.name} rotates pairs of features: head_dim must be even, not {self.head_dim}"
            )

    def sums(self, context: Context, count: int) -> Tensor:
        """Returns the sums (B, H, n, count) of the first features up to each new key, in float64."""
        sums = to_float64(context.input_features()[..., :count]).cumsum(2)
        if context.feature_sum is not None:
            sums = sums + context.feature_sum[..., :count]
        return sums

    def rotate(self, q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Returns q and k, rotated by the angles (B, H, n, d/2) of the keys; queries are at the last keys."""
        table = torch.polar(torch.ones_like(angles), angles).to(k.device, complex_dtype(k))
        return rotate_pairs(q, table[:, :, k.size(2) - q.size(2) :]), rotate_pairs(k, table)
