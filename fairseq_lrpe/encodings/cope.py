"""Contextual position encoding (CoPE)."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.autograd import apply, needs_plain_backward, plain_gradients
from fairseq_lrpe.ops.position_index import is_consecutive
from fairseq_lrpe.ops.precision import at_least_float32


@register_encoding("cope", positions="number of CoPE's position embeddings, at least 2")
class CoPE(ScoresMixin, Encoding):
    """Measures the distance from key j to query i by a sum of gates, one per key (Golovneva et al. 2024).

    With s_ij = q_i·k_j / √d, the gates are g_ij = σ(s_ij), and the position is p_ij = Σ_{t=j..i} g_it,
    clipped to ``positions`` − 1. The score is s_ij + q_i·e[p_ij], where e[p] interpolates linearly between
    e[⌊p⌋] and e[⌈p⌉]. As in the authors' listing, q·k is divided by √d, also in the gates, but q·e is not.
    Padding and keys after the query have g = 0. The embeddings e (positions, d) are shared by all heads and
    initialized to 0.

    Products of q with the embeddings take O(L·positions·d) time, and sums and look-ups O(L²).
    """

    decomposable = False
    bidirectional = False
    accumulates = True

    def __init__(self, *, positions: int = 64, **shared):
        super().__init__(**shared)
        if positions < 2:
            raise ValueError(f"cope needs at least 2 positions, not {positions}")
        self.embeddings = nn.Parameter(torch.zeros(positions, self.head_dim))

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        slopes = F.pad(self.embeddings.diff(dim=0), (0, 0, 0, 1))  # 0 from the last position on
        return torch.stack([self.embeddings, slopes], dim=1).flatten(0, 1)

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        padding = context.key_padding_mask
        assert is_consecutive(context.q_offset)  # ``accumulates`` refuses it
        table = (q @ context.prepared.mT).unflatten(-1, (-1, 2))
        content = self.scale * q @ k.mT
        gates = at_least_float32(content).sigmoid().tril(context.q_offset)
        if padding is not None:
            gates = gates.masked_fill(padding[:, None, None, : k.size(-2)], 0.0)
        return apply(_ContextualScores, content, gates, table)


class _ContextualScores(torch.autograd.Function):
    # ``table`` (..., positions, 2) contains q·e[n] and q·(e[n+1] − e[n]) of each query. Each key gathers one
    # pair as a complex number, which takes half the time of two look-ups. Of the tensors by query and key,
    # only gates and positions are saved for the backward pass.
    @staticmethod
    def plain(content, gates, table):
        positions = gates.flip(-1).cumsum(-1).flip(-1).fmin(_last_position(gates, table))
        values, slopes = _look_up(table, positions)
        return (content + values + positions.frac() * slopes).to(content.dtype)

    @staticmethod
    def forward(ctx, content, gates, table):
        positions = gates.flip(-1).cumsum_(-1).flip(-1)
        torch.fmin(positions, _last_position(gates, table), out=positions)
        ctx.save_for_backward(gates, positions, table)
        values, slopes = _look_up(table, positions)
        return (content + values).addcmul_(positions.frac(), slopes).to(content.dtype)

    @staticmethod
    def backward(ctx, grad):
        gates, positions, table = ctx.saved_tensors
        if needs_plain_backward(grad):
            plain = functools.partial(_ContextualScores.plain, grad.new_zeros(()))
            return grad, *plain_gradients(plain, (gates, table), (grad,))
        exact = grad.to(gates.dtype)
        _, slopes = _look_up(table, positions)
        grad_pairs = torch.complex(exact, exact * positions.frac())
        grad_table = torch.zeros_like(table, dtype=exact.dtype)
        torch.view_as_complex(grad_table).scatter_add_(-1, positions.long(), grad_pairs)
        # At the last position the slope is 0, so clipped keys contribute no gradient.
        return grad, (exact * slopes).cumsum_(-1), grad_table.to(table.dtype)


def _last_position(gates, table):
    """Returns the last position. ``fmin`` with it limits positions, and replaces NaN, which is no index."""
    return gates.new_full((), table.size(-2) - 1)


def _look_up(table, positions):
    """Returns q·e[n] and q·(e[n+1] − e[n]) for n = ⌊p⌋ of each position p."""
    pairs = torch.view_as_complex(table.to(positions.dtype)).gather(-1, positions.long())
    return pairs.real, pairs.imag
