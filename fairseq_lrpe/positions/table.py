"""Positions that are made one from the other."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.positions.base import AbsolutePosition


class TablePosition(AbsolutePosition):
    """Adds p_k with p_0 learned (``start``) and p_{k+1} made from p_k.

    A forward makes p_0..p_max once for the largest position of its batch, one after the other, and looks
    them up. Without gradients the table stays for the next call, together with the parameters it was made
    from; other parameter values make another table. Half precision makes it in float32: small steps would
    be rounded away.

    ``start`` (E,), initialised N(0, 1/E) like fairseq's learned positions.
    """

    additive = True

    def __init__(self, **shared):
        super().__init__(**shared)
        self.start = nn.Parameter(torch.randn(self.embed_dim) * self.embed_dim**-0.5)
        self._kept = None

    def stepper(self) -> Callable[[Tensor, int], Tensor]:
        """Returns the function (p_k, k) -> p_{k+1}, with its weights :func:`wide`."""
        raise NotImplementedError

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        places, last = self.places(positions, tokens)
        with torch.autocast(x.device.type, enabled=False):
            table = self._new_table(last + 1) if torch.is_grad_enabled() else self._kept_table(last + 1)
        return x + F.embedding(places, table).to(x.dtype)

    def _new_table(self, length):
        first = wide(self.start)
        return torch.stack([first, *self._steps(first, 0, length - 1)])

    def _kept_table(self, length):
        now = list(self.parameters())
        if self._kept is None or not all(map(_same, self._kept[0], now)):
            self._kept = [p.clone() for p in now], self._new_table(length)
        made_from, table = self._kept
        if len(table) < length:  # twice as long, so that decoding copies each row a few times only
            more = self._steps(table[-1].clone(), len(table) - 1, max(length - len(table), len(table)))
            table = torch.cat([table, torch.stack(more)])
            self._kept = made_from, table
        return table

    def _steps(self, p, k, count):
        step, rows = self.stepper(), []
        for i in range(k, k + count):
            p = step(p, i)
            rows.append(p)
        return rows


def wide(weight: Tensor) -> Tensor:
    """Returns the weight in float32, or in its own dtype where that is wider."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def _same(a, b):
    # By value: optimizers that write into ``.data`` leave no other trace.
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
