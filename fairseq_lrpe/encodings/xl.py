"""Transformer-XL's relative encoding."""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.relative import distance_slice, distance_table, relative_shift


def sinusoids(distance: Tensor, width: int) -> Tensor:
    """Returns the sinusoids R (distances, width) of distances, in float64 (LFHC paper Eqs. 6-7)."""
    t = torch.arange(0, width, 2, **float64_options(distance.device))
    angle = distance[:, None] / 10000 ** (t / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]


@register_encoding("xl")
class XL(ScoresMixin, Encoding):
    """Adds (q_i·W_r R_{i−j} + u·k_j + v·W_r R_{i−j}) / √d to the scaled scores (LFHC paper Eqs. 6-8).

    R is sinusoidal, with interleaved sines and cosines, of the model's width E = H·d. W_r (E, E) maps R to d
    features per head; u and v are (H, d) (Dai et al. 2019). The product of q with the R of L distances (2L if
    not causal) takes O(L²·d) time.
    """

    decomposable = False
    uses_distance_table = True
    amplitude = 1.0
    """Factor by which ``table`` is multiplied."""

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.num_heads * self.head_dim
        self.w_r = nn.Linear(width, width, bias=False)
        self.u = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.v = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        nn.init.xavier_uniform_(self.w_r.weight)
        nn.init.normal_(self.u, std=0.02)
        nn.init.normal_(self.v, std=0.02)

    table = staticmethod(sinusoids)

    @property
    def query_bias(self) -> Tensor | None:  # type: ignore[override]  # read only, because it is a parameter
        return self.u

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        """Adds u to the queries: (q + u)·k equals q·k + u·k, without an addition to every score."""
        return q + self.u[:, None], k

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        options = (self.num_heads * self.head_dim,)
        distances = q.size(-2), k.size(-2), context.q_offset, self.causal
        r = distance_table(self.table, options, *distances, q.device, q.dtype, self.clamp_length)
        projected = self.w_r(self.amplitude * r).unflatten(-1, (self.num_heads, self.head_dim))
        return projected.permute(1, 2, 0), distances

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        projected, distances = context.prepared
        columns = distance_slice(distances, q.size(-2), k.size(-2), context.q_offset, self.causal)
        q = (q + (self.v - self.u)[:, None]) * self.scale  # forward has already added u
        return relative_shift(q @ projected[..., columns], k.size(-2), context.q_offset)
