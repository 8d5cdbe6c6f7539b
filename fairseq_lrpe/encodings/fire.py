"""FIRE: functional interpolation for relative positions."""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.autograd import recompute
from fairseq_lrpe.ops.position_index import as_positions
from fairseq_lrpe.ops.precision import sum_dtype
from fairseq_lrpe.ops.relative import distance_slice, distance_table, expand_distances

EPSILON = 1e-6
"""Constant that is added to the normalizer, as in the authors' listing."""

_MAX_HIDDEN_ELEMENTS = 2**20
"""Maximum number of activations of the hidden layer, over all pairs, that are computed at once."""


@register_encoding(
    "fire",
    width="number of hidden units of FIRE's perceptron",
    threshold="initial value of FIRE's threshold, the position up to which all queries have the same "
    "normalizer; 0 means a quarter of the model's maximum length",
)
class FIRE(ScoresMixin, Encoding):
    """Adds f(ψ(|i−j|) / ψ(max(T, i))), ψ(x) = log(c x + 1), to the scaled scores (Li et al. 2024, Sec. 3).

    f is a perceptron 1 → ``width`` → H with ReLU. Its output layer has no bias, which would shift all scores
    of a query equally. c and the threshold T, the paper's L, are learned. The initial values are 0.1 and the
    option ``threshold``; absolute values keep both positive; 10⁻⁶ is added to the denominator, as in the
    authors' listing. The paper's threshold is 512, a quarter of its 2,048 positions. The initial threshold is
    stored in the checkpoint, so that evaluations at other lengths use the same threshold.

    i is the query's absolute position. For queries up to T, f depends on the distance only and is computed
    for each distance. For later queries, f is computed for each pair, which takes O(width · L²) time for the
    whole batch. The hidden layer is computed in blocks of pairs and recomputed in the backward pass.

    Raises:
        ValueError: for a width below 1 or a negative threshold.
    """

    decomposable = False
    uses_absolute_positions = True
    float32_parameters = ("c", "multiplier", "threshold")

    threshold: Tensor

    def __init__(self, *, width: int = 32, threshold: int = 0, **shared):
        super().__init__(**shared)
        if width < 1 or threshold < 0:
            raise ValueError(
                "fire needs a width of at least 1 and a threshold of at least 0, "
                f"not width {width} and threshold {threshold}"
            )
        self.c = nn.Parameter(torch.tensor([0.1]))
        self.multiplier = nn.Parameter(torch.ones(1))
        self.register_buffer("threshold", torch.tensor([float(threshold or max(1, self.max_positions // 4))]))
        # f uses parameters instead of nn.Linear, because models that re-initialize every nn.Linear with small
        # weights would reduce f to almost nothing.
        first = nn.Linear(1, width)
        second = nn.Linear(width, self.num_heads)
        self.hidden_weight = nn.Parameter(first.weight.data)
        self.hidden_bias = nn.Parameter(first.bias.data)
        self.output_weight = nn.Parameter(second.weight.data)

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        dtype = sum_dtype(self.c.dtype)
        distances = q.size(-2), k.size(-2), context.q_offset, self.causal
        logs = self._psi(distance_table(torch.abs, (), *distances, q.device, dtype))
        threshold = (self.multiplier * self.threshold).to(dtype).abs()
        near_bias = self._function(logs / self._normalizer(threshold))
        return distances, logs, threshold, near_bias

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        distances, logs, threshold, near_bias = context.prepared
        queries = q.size(-2)
        keys = k.size(-2)
        q_offset = context.q_offset
        columns = distance_slice(distances, queries, keys, q_offset, self.causal)
        i = as_positions(q_offset).values(queries, q.device)
        bias = expand_distances(near_bias[:, columns], queries, keys, q_offset)
        if i.is_meta or torch.compiler.is_compiling():  # values are unknown
            far = torch.arange(queries, device=q.device)
        else:
            (far,) = (i > threshold).nonzero(as_tuple=True)  # rows of the queries beyond the threshold
        if len(far):
            i = i[far, None].to(logs.dtype)
            # A query at the threshold gives it a gradient, as in `near_bias`, which `clamp` would not.
            normalizer = self._normalizer(torch.where(i > threshold, i, threshold))
            far_logs = expand_distances(logs[columns], queries, keys, q_offset)[far]
            far_bias = self._function_of_pairs(far_logs / normalizer)
            bias = far_bias if len(far) == queries else bias.index_copy(1, far, far_bias)
        return bias.to(q.dtype).unsqueeze(0)

    def _psi(self, x):
        return (self.c.to(x.dtype) * x).abs().log1p()

    def _normalizer(self, x):
        return self._psi(x) + EPSILON

    def _function_of_pairs(self, z):
        """Returns f(z), of shape (H, queries, keys), for z of shape (queries, keys), in blocks of queries."""
        blocks = z.split(max(1, _MAX_HIDDEN_ELEMENTS // (len(self.hidden_weight) * z.size(1))))
        blocks = [recompute(self._function, block, preserve_rng_state=False) for block in blocks]
        return torch.cat(blocks, dim=1)

    def _function(self, z):
        """Returns f(z), of shape (H, ...), for z of shape (...)."""
        weight, bias, output = (
            x.to(z.dtype) for x in (self.hidden_weight, self.hidden_bias[:, None], self.output_weight)
        )
        return (output @ torch.addcmul(bias, weight, z.reshape(1, -1)).relu()).unflatten(1, z.shape)
