"""Stick-breaking attention."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.position_index import is_consecutive
from fairseq_lrpe.ops.precision import at_least_float32

_EXCLUDED = -1e4
"""Score of excluded keys, whose exponential is 0 in every dtype."""


@register_encoding("stick_breaking")
class StickBreaking(ScoresMixin, Encoding):
    """Weights key j by σ(z_ij) Π_{j<l<i} (1 − σ(z_il)), with z_ij = q_i·k_j / √d (Tan et al. 2025).

    There is no softmax: key j receives the fraction σ(z_ij) of the weight that the keys between it and the
    query have left of 1. The weights of a query sum to at most 1, and the rest is not used. Only keys before
    the query receive weight, not the query's own key, so that the output is 0 at the first position. Padding
    receives no weight.

    The scores are the logarithms of the weights, computed by a sum over keys in at least float32, in O(L² d)
    time. The encoding has no parameters.
    """

    decomposable = False
    bidirectional = False
    accumulates = True
    log_weights = True

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        content = self.scale * q @ k.mT
        padding = context.key_padding_mask
        assert is_consecutive(context.q_offset)  # ``accumulates`` refuses it
        z = at_least_float32(content)
        # Excluded are the key of the query itself, and later ones.
        excluded = torch.ones(z.shape[-2:], dtype=torch.bool, device=z.device).triu(context.q_offset)
        taken = excluded if padding is None else excluded | padding[:, None, None, : k.size(-2)]
        # log(1 − σ(z)) = −softplus(z); the sum over keys after j is that from j + 1 on.
        sums = F.softplus(z).masked_fill(taken, 0.0).flip(-1).cumsum(-1).flip(-1)
        scores = F.logsigmoid(z) - F.pad(sums[..., 1:], (0, 1))
        return scores.masked_fill(excluded, _EXCLUDED).to(content.dtype)
