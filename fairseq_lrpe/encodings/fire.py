"""FIRE's functional interpolation of relative positions."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.places import Places
from fairseq_lrpe.ops.relative import distance_slice, distance_table, spread

EPSILON = 1e-6
"""What the authors add to the normaliser."""

_ELEMENTS = 2**20
"""Units of the hidden layer, of all pairs, that are made at a time."""


@register_encoding(
    "fire",
    width="hidden units of FIRE's function",
    threshold="queries up to this position share FIRE's normaliser at first; 0 is a quarter of the positions",
)
class FIRE(Encoding):
    """Adds f(ψ(|i−j|) / ψ(max(L, i))), ψ(x) = log(c x + 1), to the scaled scores (Li et al. 2024, Sec. 3).

    f is a perceptron 1 → ``width`` → H with ReLU, without a bias at its end, which would move all scores of
    a query alike. c > 0 and L are learned, from 0.1 and ``threshold`` times 1.0 on, and stay positive by
    their absolute value; 10⁻⁶ is added to the normaliser, as in the authors' listing. The paper's first
    threshold is 512, a quarter of its 2,048 positions. It is kept in a checkpoint, so that an evaluation at
    other lengths has the same.

    i is the query's own position: queries up to L see distances alone, O(L) values of f, and later ones need
    f at each pair, O(width · L²) for all heads and all of a batch together. The hidden layer is made for
    some pairs at a time, and again in the backward pass. ValueError for less than one unit or a threshold
    below 0.
    """

    decomposable = False
    relative = False
    absolute = True

    def __init__(self, *, width: int = 32, threshold: int = 0, **shared):
        super().__init__(**shared)
        if width < 1 or threshold < 0:
            raise ValueError(
                f"fire needs a width of at least 1 and a threshold of at least 0, not {width} and {threshold}"
            )
        self.c, self.multiplier = nn.Parameter(torch.tensor([0.1])), nn.Parameter(torch.ones(1))
        self.register_buffer("threshold", torch.tensor([float(threshold or max(1, self.max_positions // 4))]))
        # Parameters, and no nn.Linear: models that start all of these small would leave f next to nothing.
        first, second = nn.Linear(1, width), nn.Linear(width, self.num_heads)
        self.hidden_weight, self.hidden_bias = nn.Parameter(first.weight.data), nn.Parameter(first.bias.data)
        self.output_weight = nn.Parameter(second.weight.data)

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor:
        return self.bias_in_parts(q, k, q_offset)(q, k, q_offset)

    def bias_in_parts(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Callable[..., Tensor]:
        exact = torch.promote_types(self.c.dtype, torch.float32)
        distances = q.size(-2), k.size(-2), q_offset, self.causal
        logs = self._psi(distance_table(torch.abs, (), *distances, q.device, exact))
        limit = (self.multiplier * self.threshold).to(exact).abs()
        near = self._function(logs / self._normaliser(limit))
        return functools.partial(self._bias, distances, logs, limit, near)

    def _bias(self, distances, logs, limit, near, q, k, q_offset=0):
        queries, keys = q.size(-2), k.size(-2)
        columns = distance_slice(distances, queries, keys, q_offset, self.causal)
        if isinstance(q_offset, Places):
            i = q_offset.index
        else:
            i = torch.arange(q_offset, q_offset + queries, device=q.device)
        bias = spread(near[:, columns], queries, keys, q_offset)
        (far,) = (i > limit).nonzero(as_tuple=True)
        if len(far):
            normaliser = self._normaliser(i[far, None].to(logs.dtype))
            values = self._pairs(spread(logs[columns], queries, keys, q_offset)[far] / normaliser)
            bias = values if len(far) == queries else bias.index_copy(1, far, values)
        return bias.to(q.dtype).unsqueeze(0)

    def _psi(self, x):
        return (self.c.to(x.dtype) * x).abs().log1p()

    def _normaliser(self, x):
        return self._psi(x) + EPSILON

    def _pairs(self, z):
        """f of (rows, keys), some rows at a time."""
        parts = z.split(max(1, _ELEMENTS // (len(self.hidden_weight) * z.size(1))))
        if torch.is_grad_enabled():
            kept = {"use_reentrant": False, "preserve_rng_state": False}
            return torch.cat([checkpoint(self._function, part, **kept) for part in parts], dim=1)
        return torch.cat([self._function(part) for part in parts], dim=1)

    def _function(self, z):
        """f of numbers (...) as (H, ...)."""
        weight, bias, output = (
            x.to(z.dtype) for x in (self.hidden_weight, self.hidden_bias[:, None], self.output_weight)
        )
        return (output @ torch.addcmul(bias, weight, z.reshape(1, -1)).relu()).unflatten(1, z.shape)
