"""DAPE: data-adaptive positional encoding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.alibi import ALiBi
from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.distance_bias import DistanceBias
from fairseq_lrpe.encodings.kerple import KERPLE
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.autograd import is_exporting, recompute
from fairseq_lrpe.ops.precision import at_least_float32, no_autocast
from fairseq_lrpe.utils.suggest import check_choice

BIASES = ("kerple", "alibi")

_MAX_HIDDEN_ELEMENTS = 2**20
"""Maximum number of activations of the hidden layer, over all pairs, that are computed at once."""


@register_encoding(
    "dape",
    bias=f"bias that DAPE adapts: {' or '.join(BIASES)}",
    width="number of hidden units of DAPE's perceptron",
)
class DAPE(ScoresMixin, DistanceBias):
    """Adds b_h + f_h(s, b) to the scaled scores s_h = q·k / √d, with a bias b (Zheng et al. 2024, Eq. 3).

    b is the logarithmic bias of KERPLE, with its learned parameters in ``prior``, or −2^(−8h/H) |i−j|, that
    of ALiBi. f is a perceptron 2H → ``width`` → H with LeakyReLU of slope 0.01. Its inputs are the scores and
    biases of the pair (i, j) in all heads, so that the bias depends on the content, and heads on each other.
    The output layer has no bias, which would shift all scores of a query equally.

    f is computed for each pair, in O(width · H · L²) time. If there are many pairs, the hidden layer is
    computed in blocks of pairs and recomputed in the backward pass.

    Raises:
        ValueError: for an unknown bias or a width below 1.
    """

    float32_parameters = ("hidden_weight", "hidden_bias", "output_weight")

    def __init__(self, *, bias: str = "kerple", width: int = 32, **shared):
        super().__init__(**shared)
        check_choice("dape bias", bias, BIASES)
        if width < 1:
            raise ValueError(f"dape needs a width of at least 1, not {width}")
        self.prior = KERPLE(**shared) if bias == "kerple" else ALiBi(**shared)
        # f uses parameters instead of nn.Linear, as in FIRE: models re-initialize every nn.Linear.
        first = nn.Linear(2 * self.num_heads, width)
        second = nn.Linear(width, self.num_heads)
        self.hidden_weight = nn.Parameter(first.weight.data)
        self.hidden_bias = nn.Parameter(first.bias.data)
        self.output_weight = nn.Parameter(second.weight.data)

    def values(self, distance: Tensor) -> Tensor:
        if isinstance(self.prior, KERPLE):
            return self.prior.values(distance)
        decay = self.prior.log_decay(Context(device=distance.device))
        assert decay is not None  # ALiBi has one
        return decay[:, None].to(distance.device, distance.dtype) * distance

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        content = self.scale * q @ k.mT
        bias = self.bias(at_least_float32(q), k, context)
        with no_autocast(q.device):  # biases of far keys are large
            scores = at_least_float32(content)
            size = q.size(-2)
            if not is_exporting():
                row = max(1, len(q) * len(self.hidden_weight) * k.size(-2))  # activations
                size = max(1, _MAX_HIDDEN_ELEMENTS // row)
            blocks = [*zip(scores.split(size, dim=-2), bias.split(size, dim=-2), strict=True)]
            adapt = self._recomputed if len(blocks) > 1 else self._perceptron
            return torch.cat([adapt(*block) for block in blocks], dim=-2).to(content.dtype)

    def _recomputed(self, scores, bias):
        return recompute(self._perceptron, scores, bias, preserve_rng_state=False)

    def _perceptron(self, scores, bias):
        """Returns s + b + f(s, b) for scores (B, H, rows, keys) and biases (1, H, rows, keys)."""
        weight, shift, output = (
            x.to(scores.dtype) for x in (self.hidden_weight, self.hidden_bias, self.output_weight)
        )
        heads = self.num_heads
        of_scores = weight[:, :heads] @ scores.flatten(2)  # (B, width, rows · keys)
        of_biases = torch.addmm(shift[:, None], weight[:, heads:], bias[0].flatten(1))
        f = output @ F.leaky_relu(of_scores + of_biases)
        return scores + bias + f.unflatten(-1, scores.shape[2:])
