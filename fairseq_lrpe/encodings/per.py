"""PermuteFormer's encoding (PER)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.table import TableEncoding
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.permutation import (
    PermutationBuffer,
    PermutationTable,
    permutation_powers,
    permute_features,
)
from fairseq_lrpe.ops.position_index import PositionIndex


@register_encoding("per")
class PER(PermutationBuffer, TableEncoding):
    """Permutes features depending on the position, with a decay if causal (PermuteFormer, Chen 2021).

    The scores are r_h^(i−j) (π_h^i q_i)·(π_h^j k_j), with a random permutation π_h of each head's features.
    r_h is sigmoid(3h/H + 2), h = 0..H-1, if causal, and 1 otherwise. The paper divides k_j by r^j, which
    overflows float32 after about 700 positions. Here, linear attention applies log r as its ``log_decay``, in
    O(L d) time, and softmax attention multiplies the scores by r^(i−j) ≤ 1, in O(L² d) time.
    """

    bidirectional = True

    def __init__(self, **shared):
        super().__init__(**shared)
        permutations = [torch.randperm(self.head_dim) for _ in range(self.num_heads)]
        self.store_permutation(torch.stack(permutations))

    def log_decay(self, context: Context = START) -> Tensor | None:
        if not self.causal:
            return None
        return constant(_log_decays, self.num_heads, **float64_options(context.device))

    def encode(self, x: Tensor, table: PermutationTable) -> Tensor:
        return permute_features(x, *table)

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> PermutationTable:
        return self.permutation_table(offset, x.size(-2))

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        return permute_features(k, permutation_powers(self.permutation.argsort(-1), shift, 1))


def _log_decays(num_heads, device):
    heads = torch.arange(num_heads, **float64_options(device))
    return F.logsigmoid(3 * heads / num_heads + 2)[:, None]
