"""A bias by distance whose values are mixed by the content of the query."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import InputsMixin, ScoresMixin
from fairseq_lrpe.ops.relative import distance_table, expand_distances


def _column(distance, extent):
    """Returns the column of each distance; that of distances beyond the table, and of later keys, is last."""
    return torch.where(distance < 0, extent, distance.clamp(max=extent))


@register_encoding(
    "content_bias",
    rank="number of bias vectors that content_bias mixes",
    extent="number of distances for which content_bias has values; the bias of larger ones is 0",
)
class ContentBias(ScoresMixin, InputsMixin, Encoding):
    """Adds r_i·p_{i−j} to the scaled scores, where r_i depends on the query's input (Inkling).

    r_i = W_h x_i mixes ``rank`` vectors of biases, the columns of P (rank, extent), which all heads share;
    x is the layer's input. The bias of distances from ``extent`` on is 0. In Shaw's encoding and LFHC, the
    query itself takes the place of r. The rank is that of the model Inkling (Thinking Machines), whose short
    convolutions, norms and log-scaled queries are not included. W is initialized like ``nn.Linear``, and P
    from N(0, 0.02²).

    Products of r with P take O(L·rank·extent) time, and gathering the biases O(L²).

    Raises:
        ValueError: for a rank or an extent below 1.
    """

    decomposable = False
    bidirectional = False

    def __init__(self, *, rank: int = 16, extent: int = 512, **shared):
        super().__init__(**shared)
        if rank < 1 or extent < 1:
            raise ValueError(
                f"content_bias needs a rank and an extent of at least 1, not {rank} and {extent}"
            )
        self.rank = rank
        self.extent = extent
        self.w_r = nn.Linear(self.num_heads * self.head_dim, self.num_heads * rank, bias=False)
        self.p = nn.Parameter(0.02 * torch.randn(rank, extent))

    def input_features(self, x: Tensor) -> Tensor:
        """Returns r (B, H, n, rank)."""
        return self.w_r(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        """Returns r of all queries, which are at the last keys, and the position of the first one."""
        r = context.input_features()
        return r[:, :, r.size(2) - q.size(2) :], context.q_offset

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        r, first = context.prepared
        queries = q.size(-2)
        keys = k.size(-2)
        start = context.q_offset - first
        values = F.pad(r[:, :, start : start + queries] @ self.p, (0, 1))  # (B, H, Lq, extent + 1)
        columns = distance_table(_column, (self.extent,), queries, keys, context.q_offset, True, q.device)
        columns = expand_distances(columns, queries, keys, context.q_offset)
        return values.gather(-1, columns.expand(*values.shape[:2], -1, -1)).to(q.dtype)
