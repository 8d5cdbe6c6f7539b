"""KERPLE's logarithmic bias."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.relative import distance_table, spread

LEAST = 0.01
"""Of both parameters, as in the authors' code."""


@register_encoding("kerple")
class KERPLE(Encoding):
    """Adds −r₁ log(1 + r₂ |i−j|) to the scaled scores (Chi et al. 2022, the logarithmic variant).

    r₁, r₂ > 0 are learned, ``bias_p`` and ``bias_a`` (H,): they start uniformly in (0, 2) and (0, 1), and
    count as 0.01 where they are below it. The authors' code sets them to that before each use; here the
    formula does, which changes no parameter: one that fell below 0.01 gets no gradient any more.
    O(L²) additions per head; L logarithms, not L².
    """

    decomposable = False
    by_distance = True

    def __init__(self, **shared):
        super().__init__(**shared)
        self.bias_p = nn.Parameter((2 * torch.rand(self.num_heads)).clamp(min=LEAST))
        self.bias_a = nn.Parameter(torch.rand(self.num_heads).clamp(min=LEAST))

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor:
        queries, keys = q.size(-2), k.size(-2)
        exact = torch.promote_types(self.bias_p.dtype, torch.float32)
        distances = queries, keys, q_offset, self.causal, q.device, exact
        distance = distance_table(torch.abs, (), *distances, clamp=self.clamp_length)
        r1, r2 = (x.to(exact).clamp(min=LEAST)[:, None] for x in (self.bias_p, self.bias_a))
        by_distance = -r1 * (r2 * distance).log1p()
        return spread(by_distance.to(q.dtype), queries, keys, q_offset).unsqueeze(0)
