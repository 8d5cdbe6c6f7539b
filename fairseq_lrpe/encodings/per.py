"""PermuteFormer."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, at_positions, register_encoding
from fairseq_lrpe.ops.permutation import permutation_powers, permute_features


@register_encoding("per")
class PER(Encoding):
    """Permutes features by position, and lets pairs fade with their distance (Chen 2021).

    The scores are r_h^(i−j) (π_h^i q_i)·(π_h^j k_j), with a random permutation π_h of each head's features.
    When causal, r_h = sigmoid(3h/H + 2), h = 0..H-1; bidirectionally r = 1. The published form divides k
    by r^j, which float32 leaves after some 700 positions: here r reaches linear attention as ``log_decay``,
    O(L d), and in softmax attention r^(i−j), never above 1, multiplies the scores, O(L² d).
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        permutations = [torch.randperm(self.head_dim) for _ in range(self.num_heads)]
        self.register_buffer("permutation", torch.stack(permutations))

    @property
    def log_decay(self) -> Tensor | None:
        if not self.causal:
            return None
        heads = torch.arange(self.num_heads, dtype=torch.float64)
        return F.logsigmoid(3 * heads / self.num_heads + 2)

    def forward(self, q: Tensor, k: Tensor, q_offset: int = 0, k_offset: int = 0) -> tuple[Tensor, Tensor]:
        at_q, at_k = at_positions(self._powers, q, k, q_offset, k_offset)
        return permute_features(q, at_q), permute_features(k, at_k)

    def earlier(self, k: Tensor, steps: int) -> Tensor:
        return permute_features(k, permutation_powers(self.permutation.argsort(-1), steps, 1))

    def _powers(self, x, offset):
        return permutation_powers(self.permutation, offset, x.size(-2))

    @property
    def biased(self) -> bool:
        return self.causal

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor | None:
        return None  # r multiplies the scores

    def scores_in_parts(
        self,
        q: Tensor,
        k: Tensor,
        q_offset: int = 0,
        key_padding_mask: Tensor | None = None,
        steps: Tensor | None = None,
    ) -> Callable[..., Tensor] | None:
        return self.fading_scores(self.log_decay[:, None], q, k) if self.causal else None
