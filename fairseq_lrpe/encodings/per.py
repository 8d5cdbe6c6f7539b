"""PermuteFormer."""

import torch
import torch.nn.functional as F

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.permutation import permutation_powers, permute_features
from fairseq_lrpe.ops.relative import spread


@register_encoding("per")
class PER(Encoding):
    """r_h^(i−j) (π_h^i q_i)·(π_h^j k_j), with a random permutation π_h of each head's features (Chen 2021).

    When causal, r_h = sigmoid(3h/H + 2), h = 0..H-1; bidirectionally r = 1. The published form divides k
    by r^j, which float32 leaves after some 700 positions: here r reaches linear attention as ``log_decay``,
    O(L d), and in softmax attention r^(i−j), never above 1, multiplies the scores: one more product, O(L² d).
    """

    def __init__(self, **shared):
        super().__init__(**shared)
        permutations = [torch.randperm(self.head_dim) for _ in range(self.num_heads)]
        self.register_buffer("permutation", torch.stack(permutations))

    @property
    def log_decay(self):
        if not self.causal:
            return None
        heads = torch.arange(self.num_heads, dtype=torch.float64, device=self.permutation.device)
        return F.logsigmoid(3 * heads / self.num_heads + 2)

    def forward(self, q, k, q_offset=0, k_offset=0):
        index = permutation_powers(self.permutation, q_offset, q.size(-2))
        q = permute_features(q, index)
        if (q_offset, q.size(-2)) != (k_offset, k.size(-2)):
            index = permutation_powers(self.permutation, k_offset, k.size(-2))
        return q, permute_features(k, index)

    @property
    def biased(self):
        return self.causal

    def bias(self, q, k, q_offset=0):
        if not self.causal:
            return None
        distance = torch.arange(q_offset + q.size(-2) - 1, -1, -1, device=q.device)
        missing = self.scale * torch.expm1(self.log_decay[:, None] * distance)
        return (q @ k.mT) * spread(missing.to(q.dtype), q.size(-2), k.size(-2))
