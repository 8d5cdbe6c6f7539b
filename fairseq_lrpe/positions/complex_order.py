"""Complex-order embeddings, in which each word has its own frequencies."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.rotation import rotary_angles
from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("complex_order")
class ComplexOrder(AbsolutePosition):
    """Maps word w at position k to r_w e^{i(ω_w k + θ_w)}, feature by feature (Wang et al. 2020).

    The formula is Eq. 12 of Su's survey (2021), "Complex-Valued", in the real form [Re, Im]: the two halves
    of x are r_w e^{iθ_w}, and the output is x rotated by ω_w k. The layers of the model are real, while those
    of the paper are complex. Every ω_w is initialized to 10000^(-2t/E), t < E/2, the angles of RoPE; those of
    the authors' code differ (docs/deviations). Padding has ω = 0 and is not rotated. Angles are computed
    in float64, because positions can be large.

    The parameter is ``omega.weight`` (vocab_size, E/2). The time is O(L E).

    Raises:
        ValueError: if the embedding dimension is odd.
    """

    float32_parameters = ("omega.weight",)

    def __init__(self, **shared):
        super().__init__(**shared)
        if self.embed_dim % 2:
            raise ValueError(f"complex_order needs an even embedding dimension, not {self.embed_dim}")
        half = self.embed_dim // 2
        self.omega = nn.Embedding(self.vocab_size, half, padding_idx=self.padding_idx)
        with torch.no_grad():
            self.omega.weight.copy_(rotary_angles("a", half, self.embed_dim, self.max_positions))
            self.omega.weight[self.padding_idx] = 0

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        positions = self.mask_padding(positions, tokens)
        omega = to_float64(self.omega(tokens))
        angles = omega * positions.unsqueeze(-1).to(omega.device)
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = (f(angles).to(x.device, dtype) for f in (torch.cos, torch.sin))
        re, im = x.to(dtype).chunk(2, dim=-1)
        return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1).to(x.dtype)
