"""Stick-breaking attention with a normalization of each head's output."""

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import ValuesMixin
from fairseq_lrpe.encodings.stick_breaking import StickBreaking


@register_encoding("stick_breaking_norm")
class StickBreakingNorm(ValuesMixin, StickBreaking):
    """Stick-breaking attention whose outputs are normalized per head (Tan et al. 2025).

    The weights of stick-breaking sum to less than 1, and to more for later queries, so that outputs grow with
    the position. As in the trained models of the authors (IBM/dolomite-engine, stickbreaking_attention.py), a
    GroupNorm with one group for each head, before the output projection, makes their sizes equal.

    The parameters ``norm.weight`` and ``norm.bias`` are (E,).
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        self.norm = nn.GroupNorm(self.num_heads, self.num_heads * self.head_dim)

    def decode_output(self, o: Tensor, context: Context = START, weights: Tensor | None = None) -> Tensor:
        """Returns the normalized outputs (B, H, Lq, d)."""
        rows = o.transpose(1, 2).flatten(2)  # (B, Lq, E)
        weight = self.norm.weight.to(rows.dtype)
        bias = self.norm.bias.to(rows.dtype)
        normalized = F.group_norm(rows.flatten(0, 1), self.num_heads, weight, bias, self.norm.eps)
        return normalized.view(rows.shape).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
