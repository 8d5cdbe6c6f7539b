"""Recurrent position embeddings."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_lrpe.ops.precision import at_least_float32
from fairseq_lrpe.ops.rotation import rotary_angles
from fairseq_lrpe.positions.base import register_position
from fairseq_lrpe.positions.table import RecurrentTable


@register_position("recurrent")
class Recurrent(RecurrentTable):
    """Adds p_k with p_{k+1} = f(p_k) (Su 2021, survey of position encodings, "Recurrent").

    The survey does not specify f; here it is f(p) = p + W₂ tanh(W₁ p + b), initialized with W₁ = I, b = 0 and
    W₂ = R − I, where R rotates the pair (p_2t, p_2t+1) by 10000^(-2t/E). Because the initial p_0 is small,
    p_k is approximately Rᵏ p_0, a sinusoidal encoding, while a random f would soon converge to a fixed point.

    Parameters are p_0, ``start`` (E,), ``inner`` (W₁, b) and ``outer`` (W₂). For n positions, the time is
    O(n E²) for n sequential steps, and O(L E) for the addition.
    """

    float32_parameters = ("start", "inner.weight", "inner.bias", "outer.weight")

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.embed_dim
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)
        theta = rotary_angles("a", width // 2, width, self.max_positions)
        even = 2 * torch.arange(width // 2, device=theta.device)
        rotation = theta.new_zeros(width, width)  # R − I
        rotation[even, even] = rotation[even + 1, even + 1] = -2 * torch.sin(theta / 2) ** 2  # cos θ − 1
        rotation[even + 1, even] = torch.sin(theta)
        rotation[even, even + 1] = -torch.sin(theta)
        with torch.no_grad():
            self.outer.weight.copy_(rotation)

    def step_function(self) -> Callable[[Tensor, int], Tensor]:
        if not self.has_plain_layers:
            return lambda p, k: p + self.outer(torch.tanh(self.inner(p)))
        w1 = at_least_float32(self.inner.weight)
        b = at_least_float32(self.inner.bias)
        w2 = at_least_float32(self.outer.weight)
        return lambda p, k: p + w2 @ torch.tanh(w1 @ p + b)
