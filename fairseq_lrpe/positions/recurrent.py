"""Recurrent positions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_lrpe.ops.rotation import theta_ladder
from fairseq_lrpe.positions.base import register_position
from fairseq_lrpe.positions.table import TablePosition, wide


@register_position("recurrent")
class Recurrent(TablePosition):
    """Adds p_k with p_{k+1} = f(p_k) (Su 2021, survey of position encodings, "Recurrent").

    The survey leaves f open; here it is p + W₂ tanh(W₁ p + b). It starts with W₁ = 1, b = 0 and W₂ = R − 1,
    where R turns the pair (p_2t, p_2t+1) by 10000^(-2t/E): for the small p_0 of the start that is nearly
    p_k = Rᵏ p_0, a sinusoidal encoding, while a random f would soon reach a point it no longer leaves.

    O(max E²) for positions up to max, one after the other, and O(L E). ``start`` (E,), ``inner`` (W₁, b),
    ``outer`` (W₂).
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.embed_dim
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)
        theta = theta_ladder("a", width // 2, width, self.max_positions)
        even = 2 * torch.arange(width // 2)
        turn = torch.zeros(width, width, dtype=theta.dtype)
        turn[even, even] = turn[even + 1, even + 1] = -2 * torch.sin(theta / 2) ** 2  # cos θ − 1
        turn[even + 1, even] = torch.sin(theta)
        turn[even, even + 1] = -torch.sin(theta)
        with torch.no_grad():
            self.outer.weight.copy_(turn)

    def stepper(self) -> Callable[[Tensor, int], Tensor]:
        w1, b, w2 = wide(self.inner.weight), wide(self.inner.bias), wide(self.outer.weight)
        return lambda p, k: p + w2 @ torch.tanh(w1 @ p + b)
