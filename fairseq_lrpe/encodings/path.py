"""Positions by accumulated Householder transformations."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.reflections import ReflectedKeys

RANK, WIDTH = 32, 3
"""Of the linear layer that makes w, and of the convolution behind it: those of the authors' layer."""


@register_encoding("path")
class PaTH(Encoding):
    """Turns keys by a reflection at every position between them and the query (Yang et al. 2025).

    The score is q_iᵀ H_i H_{i−1} ··· H_{j+1} k_j / √d, with H_s = I − β_s w_s w_sᵀ of each head. From the
    layer's input x: β_s = 2 σ(u·x_s + b), and w_s is a linear layer of rank 32 without bias, a causal
    convolution of each feature over 3 positions, SiLU, and then each head's part divided by its norm.
    Padding has H = I. The paper's forget gate (PaTH-FoX) is no part of it.

    :class:`fairseq_lrpe.ops.reflections.ReflectedKeys` says how, in about twice the products of q·k, O(L² d).
    While decoding the keys are kept as all reflections so far have left them, so that a step is O(L d). All
    that is in float32 in half precision too.
    """

    decomposable = False
    bidirectional = False
    looks_back = WIDTH - 1

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.num_heads * self.head_dim
        self.w_in, self.w_out = nn.Linear(width, RANK, bias=False), nn.Linear(RANK, width, bias=False)
        self.convolution = nn.Parameter(torch.empty(WIDTH, width))
        self.beta = nn.Linear(width, self.num_heads)
        nn.init.uniform_(self.convolution, -(WIDTH**-0.5), WIDTH**-0.5)

    def forward(self, q: Tensor, k: Tensor, q_offset: int = 0, k_offset: int = 0) -> tuple[Tensor, Tensor]:
        return q, k.to(_precise(k))  # keys that are kept are reflected again and again

    def steps(self, x: Tensor) -> Tensor:
        """Returns √β_s w_s."""
        w, length = self.w_out(self.w_in(x)), len(x) - self.looks_back
        w = F.silu(sum(w[t : t + length] * row for t, row in enumerate(self.convolution)))
        w = F.normalize(w.unflatten(-1, (self.num_heads, -1)).to(_precise(w)), dim=-1)
        beta = self.beta(x[self.looks_back :]).to(w.dtype)
        root = (0.5 * F.logsigmoid(beta)).exp() * 2**0.5  # whose gradient is finite where β is 0
        return (root[..., None] * w).permute(1, 2, 0, 3)

    def scores_in_parts(
        self,
        q: Tensor,
        k: Tensor,
        q_offset: int = 0,
        key_padding_mask: Tensor | None = None,
        steps: Tensor | None = None,
    ) -> Callable[..., Tensor]:
        with _no_autocast(k):
            return functools.partial(self._scores, ReflectedKeys(k, steps))

    def _scores(self, keys, q, k, q_offset=0):
        with _no_autocast(k):
            return keys.scores(self.scale * q.to(k.dtype), q_offset).to(q.dtype)

    def settled(self, k: Tensor, scores: Callable[..., Tensor] | None) -> Tensor:
        with _no_autocast(k):
            return scores.args[0].moved()


def _no_autocast(x):
    return torch.autocast(x.device.type, enabled=False)  # it would multiply in half precision again


def _precise(x):
    return torch.promote_types(x.dtype, torch.float32)
