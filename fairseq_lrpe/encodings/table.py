"""Base class of encodings that transform q and k by a table with a row for each position."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import ShiftMixin
from fairseq_lrpe.ops.position_index import PositionIndex, same_positions


def position_tables(build: Callable, q: Tensor, k: Tensor, context: Context) -> tuple:
    """Returns ``build(q, q_offset)`` and ``build(k, k_offset)``, which are one table for equal positions."""
    q_table = build(q, context.q_offset)
    if same_positions(context.q_offset, context.k_offset, q.size(-2), k.size(-2)):
        return q_table, q_table
    return q_table, build(k, context.k_offset)


def _starts_kernels(x):
    """Returns whether x is on a device on which starting a short operation takes longer than executing it."""
    return x.device.type != "cpu"


class TableEncoding(ShiftMixin, Encoding):
    """Base class of encodings that transform q and k by a table with a row for each position.

    Subclasses implement :meth:`position_table` and :meth:`encode`. If queries and keys have equal positions,
    they share one table, and on a GPU they are encoded together.
    """

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Any:
        """Returns the table for the positions of x (B, H, L, d), (..., L, n)."""
        raise NotImplementedError

    def encode(self, x: Tensor, table: Any) -> Tensor:
        """Returns the encoded x (B, H, L, d), whose last dimension may be larger than d."""
        raise NotImplementedError

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        q_table, k_table = position_tables(self.position_table, q, k, context)
        if q_table is k_table and q.shape == k.shape and _starts_kernels(q):
            q, k = self.encode(torch.cat([q, k]), q_table).chunk(2)
            return q, k
        return self.encode(q, q_table), self.encode(k, k_table)
