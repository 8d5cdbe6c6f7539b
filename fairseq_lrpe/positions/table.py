"""Position embeddings that are computed sequentially, each from the previous one."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.ops.autograd import is_transformed
from fairseq_lrpe.ops.constants import is_tracing
from fairseq_lrpe.ops.layers import is_unchanged
from fairseq_lrpe.ops.precision import at_least_float32, no_autocast
from fairseq_lrpe.positions.base import AbsolutePosition

_MAX_POSITIONS = 2**20
"""Maximum number of rows of a table, each of which takes a step that depends on the previous row."""


class RecurrentTable(AbsolutePosition):
    """Base class of embeddings that add p_k at position k, where p_0 is learned and p_{k+1} follows from p_k.

    Each forward pass computes a table of p_0, p_1, .. up to the largest position of the batch. Without
    gradients, the table is cached and only recomputed when parameters change. Half-precision models compute
    the table in float32, because small steps would be lost in rounding; parameters stay in float32, too.

    The parameter p_0 is ``start`` (E,), or (layers · E,) in ``every_layer``, which is initialized from
    N(0, 1/E) like fairseq's learned positions.

    Raises:
        ValueError: for positions from 2^20 on, each of which takes a sequential step.
    """

    additive = True

    def __init__(self, **shared):
        super().__init__(**shared)
        self.start = nn.Parameter(torch.randn(self.width) * self.embed_dim**-0.5)
        self._cache = None

    @property
    def has_plain_layers(self) -> bool:
        """Whether no layer has an adapter, a hook or quantized weights; otherwise layers are called."""
        return all(is_unchanged(layer, nn.Linear) for layer in self.children())

    def step_function(self) -> Callable[[Tensor, int], Tensor]:
        """Returns the function (p_k, k) -> p_{k+1}, which converts weights by :func:`at_least_float32`."""
        raise NotImplementedError

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        positions = self.mask_padding(positions, tokens)
        last = self.last_position(positions, limit=_MAX_POSITIONS)
        # A table that is part of a graph, a trace or a transform is not cached.
        is_recorded = torch.is_grad_enabled() or is_transformed() or is_tracing()
        is_recorded = is_recorded or not self.has_plain_layers  # adapters can be switched off
        with no_autocast(x.device):
            table = self._new_table(last + 1) if is_recorded else self._cached_table(last + 1)
        return x + F.embedding(positions, table).to(x.dtype)

    def _new_table(self, length):
        start = at_least_float32(self.start)
        # The second row gives the weights of the step a gradient of zeros if all tokens are at position 0.
        return torch.stack([start, *self._iterate(start, 0, max(length, 2) - 1)])

    def _cached_table(self, length):
        parameters = list(self.parameters())
        if self._cache is None or not all(map(_equal, self._cache[0], parameters)):
            self._cache = [p.clone() for p in parameters], self._new_table(length)
        cached_parameters, table = self._cache
        if len(table) < length:
            # At least doubling the length lets decoding copy each row only a few times.
            count = max(length - len(table), len(table))
            rows = self._iterate(table[-1].clone(), len(table) - 1, count)
            table = torch.cat([table, torch.stack(rows)])
            self._cache = cached_parameters, table
        return table

    def _iterate(self, p, k, count):
        """Returns the ``count`` rows after the row p of position k."""
        step = self.step_function()
        rows = []
        for i in range(k, k + count):
            p = step(p, i)
            rows.append(p)
        return rows


def _equal(a, b):
    # Values are compared, because optimizers that write to ``.data`` do not change a tensor's version.
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
