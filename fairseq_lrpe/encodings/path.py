"""PaTH: position encoding by accumulated Householder transformations."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import InputsMixin, ScoresMixin
from fairseq_lrpe.ops.normalization import unit_vectors
from fairseq_lrpe.ops.precision import at_least_float32, no_autocast
from fairseq_lrpe.ops.reflections import ReflectedKeys

RANK = 32
KERNEL_SIZE = 3
"""Rank of the linear layer and kernel size of the convolution that compute w, as in the authors' code."""


@register_encoding("path")
class PaTH(ScoresMixin, InputsMixin, Encoding):
    """Multiplies keys by a Householder-like matrix of each later position up to the query (Yang et al. 2025).

    The score is q_iᵀ H_i H_{i−1} ··· H_{j+1} k_j / √d, with H_s = I − β_s w_s w_sᵀ for each head. Given the
    layer's input x, β_s = 2 σ(u·x_s + b), and w_s is computed by a linear layer of rank 32 without bias, a
    causal depthwise convolution over 3 positions, SiLU, and normalization per head. H_s is I at padding. The
    paper's forget gate (PaTH-FoX) is not included.

    :class:`fairseq_lrpe.ops.reflections.ReflectedKeys` computes the scores in O(L² d) time, about twice the
    time of q·k. Cached keys include all previous reflections, so that a decoding step takes O(L d) time. In
    half precision, the normalized w and the scores are computed in float32.
    """

    decomposable = False
    bidirectional = False
    left_context = KERNEL_SIZE - 1

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.num_heads * self.head_dim
        self.w_in = nn.Linear(width, RANK, bias=False)
        self.w_out = nn.Linear(RANK, width, bias=False)
        self.convolution = nn.Parameter(torch.empty(KERNEL_SIZE, width))
        self.beta = nn.Linear(width, self.num_heads)
        nn.init.uniform_(self.convolution, -(KERNEL_SIZE**-0.5), KERNEL_SIZE**-0.5)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        return q, at_least_float32(k)  # rounding errors of cached keys add up

    def input_features(self, x: Tensor) -> Tensor:
        """Returns √β_s w_s (B, H, n, d), from which H_s is computed."""
        x = x.transpose(0, 1).contiguous()  # the convolution shifts along the first dimension
        w = self.w_out(self.w_in(x))
        length = len(x) - self.left_context
        w = F.silu(sum(w[t : t + length] * row for t, row in enumerate(self.convolution)))
        w = unit_vectors(at_least_float32(w).unflatten(-1, (self.num_heads, -1)))
        beta = self.beta(x[self.left_context :]).to(w.dtype)
        root = (0.5 * F.logsigmoid(beta)).exp() * 2**0.5  # √β, with a finite gradient at β = 0
        return (root[..., None] * w).permute(1, 2, 0, 3)

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        with no_autocast(k.device):
            return ReflectedKeys(k, context.input_features())

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        with no_autocast(k.device):
            return context.prepared.scores(self.scale * q.to(k.dtype), context.q_offset).to(q.dtype)

    def cached_keys(self, k: Tensor, context: Context) -> Tensor:
        with no_autocast(k.device):
            return context.prepared.final_keys()
