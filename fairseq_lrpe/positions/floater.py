"""FLOATER: positions on the trajectory of a differential equation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.ops.precision import at_least_float32
from fairseq_lrpe.positions.base import register_position
from fairseq_lrpe.positions.table import RecurrentTable


@register_position("floater")
class Floater(RecurrentTable):
    """Adds p(k Δ) with dp/dt = h(p, t) and learned p(0) (Liu et al. 2020; Su 2021, "Recurrent").

    h(p, t) is W₂ tanh(W₁ [p; t] + b₁) + b₂. The equation is solved by one step of the classic Runge–Kutta
    method from each position to the next. It is our choice to use tanh, the hidden width E, Δ = 0.1 and a
    single step. Positions are added to the embeddings only; :class:`FloaterEveryLayer` adds them in every
    layer. W₂ is initialized from N(0, (Δ M)⁻²/E), M = ``max_positions``, and b₂ to 0, so that features change
    by about 1 within M positions; W₁ and b₁ are initialized as in nn.Linear.

    Parameters are ``start`` (E,), ``inner`` (W₁, b₁) and ``outer`` (W₂, b₂). For n positions, the time is
    O(n E²), with four sequential evaluations of h per position, and O(L E) for the addition.
    """

    delta = 0.1
    float32_parameters = ("start", "inner.weight", "inner.bias", "outer.weight", "outer.bias")

    def __init__(self, **shared):
        super().__init__(**shared)
        width = self.embed_dim
        self.inner = nn.Linear(width + 1, width)
        self.outer = nn.Linear(width, width)
        nn.init.normal_(self.outer.weight, std=width**-0.5 / (self.delta * self.max_positions))
        nn.init.zeros_(self.outer.bias)

    def step_function(self) -> Callable[[Tensor, int], Tensor]:
        h = self._derivative()
        d = self.delta

        def step(p, k):
            p = p.unflatten(0, (-1, self.embed_dim))
            h1 = h(p, k * d)
            h2 = h(p + d / 2 * h1, (k + 0.5) * d)
            h3 = h(p + d / 2 * h2, (k + 0.5) * d)
            h4 = h(p + d * h3, (k + 1) * d)
            return (p + d / 6 * (h1 + 2 * (h2 + h3) + h4)).flatten()

        return step

    def _derivative(self):
        """Returns the function h of p (.., E) and a number t."""
        if not self.has_plain_layers:
            return lambda p, t: self.outer(torch.tanh(self.inner(F.pad(p, (0, 1), value=t))))
        w1 = at_least_float32(self.inner.weight)
        b1 = at_least_float32(self.inner.bias)
        w2 = at_least_float32(self.outer.weight)
        b2 = at_least_float32(self.outer.bias)
        w_p = w1[:, :-1].contiguous()
        w_t = w1[:, -1]
        return lambda p, t: F.linear(torch.tanh(F.linear(p, w_p, w_t * t + b1)), w2, b2)


@register_position("floater_every_layer")
class FloaterEveryLayer(Floater):
    """Adds p_n(k Δ) to the inputs of self-attention in layer n (Liu et al. 2020).

    The queries, keys and values of layer n are W (x + p_n(k Δ)) + b for the inputs x of attention, after the
    layer norm if it comes first, with dp_n/dt = h(p_n, t). All layers share h, and each has its own learned
    p_n(0), as in the authors' code (xuanqing94/FLOATER, fairseq/models/flow_transformer.py).

    In that code, the biases of queries, keys and values each follow the equation, also in the decoder's
    attention to the encoder, and the embeddings have sinusoidal positions as well. Here, the biases are W p_n
    with the same p_n, in self-attention only, and the embeddings have no positions. The choices of
    :class:`Floater` apply.

    Parameters are ``start`` (layers · E,), ``inner`` and ``outer``. For N layers and n positions, the time is
    O(N n E²), with four sequential evaluations of h per position, and O(N L E) for the addition.
    """

    every_layer = True
