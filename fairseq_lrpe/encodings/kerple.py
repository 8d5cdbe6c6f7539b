"""KERPLE's logarithmic bias."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.relative import distance_table, expand_distances

MIN_VALUE = 0.01
"""Lower bound of both parameters, as in the authors' code."""


@register_encoding("kerple")
class KERPLE(Encoding):
    """Adds −r₁ log(1 + r₂ |i−j|) to the scaled scores (Chi et al. 2022, the logarithmic variant).

    r₁ and r₂ are the learned parameters ``bias_p`` and ``bias_a`` (H,), initialized uniformly in (0, 2) and
    (0, 1). Values below 0.01 are replaced by 0.01. The authors' code overwrites such parameters before each
    use; here they are clamped in the formula, so that the parameters stay unchanged.
    The bias costs O(L²) additions per head, but only O(L) logarithms.
    """

    decomposable = False
    uses_distance_table = True

    def __init__(self, **shared):
        super().__init__(**shared)
        self.bias_p = nn.Parameter((2 * torch.rand(self.num_heads)).clamp(min=MIN_VALUE))
        self.bias_a = nn.Parameter(torch.rand(self.num_heads).clamp(min=MIN_VALUE))

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor:
        queries, keys = q.size(-2), k.size(-2)
        dtype = torch.promote_types(self.bias_p.dtype, torch.float32)
        arguments = queries, keys, q_offset, self.causal, q.device, dtype
        distance = distance_table(torch.abs, (), *arguments, clamp=self.clamp_length)
        r1, r2 = (x.to(dtype).clamp(min=MIN_VALUE)[:, None] for x in (self.bias_p, self.bias_a))
        bias = -r1 * (r2 * distance).log1p()
        return expand_distances(bias.to(q.dtype), queries, keys, q_offset).unsqueeze(0)
