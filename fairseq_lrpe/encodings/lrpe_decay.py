"""LRPE with a decay (LRPE-d)."""

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.lrpe import LRPE
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.position_index import PositionIndex
from fairseq_lrpe.ops.rotation import complex_dtype, phases, rotary_angles


@register_encoding(
    "lrpe_decay",
    first_layer="rotate in the first layer only, with separate angles for each head, as in TransNormerLLM",
)
class LRPEDecay(LRPE):
    """Unitary LRPE with learned angles and the decay λ = e^(−(8h/H)(1 − l/L)) of head h in layer l.

    The encoding is the LRPE-d of TransNormerLLM (Qin et al. 2023, Section 3.1). With h = 1..H and l = 1..L,
    the product of query i and key j is weighted by λ^(i−j), which is 1 in the last layer. The public code
    uses ALiBi's slopes 2^(−8h/H) instead of 8h/H; here the paper's formula is used. Encoding takes O(L d)
    time and doubles the width of q and k.

    By default, all layers rotate q and k, by angles that the heads share. With ``first_layer``, only layer 1
    rotates, as in the models of TransNormerLLM; the other layers only decay, and have no parameters.
    ``theta`` of layer 1 is then (H, d), initially 10000^(−2n/(H·d)) for n = 0..H·d−1.

    Raises:
        ValueError: if ``layers`` is missing. Its default is ``layer``, the last layer, which does not decay.
    """

    def __init__(self, *, first_layer: bool = False, layers: int | None = None, **shared):
        if layers is None:
            raise ValueError(
                "lrpe_decay depends on the number of layers: pass layers, and layer from 1 to layers"
            )
        super().__init__(core="unitary", rotation="identity", learn_theta=True, layers=layers, **shared)
        self.rotates = self.layer == 1 or not first_layer
        if not self.rotates:
            del self.theta
        elif first_layer:
            self.rotated_width = width = self.num_heads * self.head_dim
            theta = rotary_angles("a", width, width, self.max_positions)
            new = self.theta.new_empty(self.num_heads, self.head_dim)
            self.theta = nn.Parameter(new.copy_(theta.view_as(new)))

    def log_decay(self, context: Context = START) -> Tensor | None:
        options = self.num_heads, self.layer, self.layers
        return constant(_log_decays, *options, **float64_options(context.device))

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        return super().forward(q, k, context) if self.rotates else (q, k)

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        return super().shift_keys(k, shift) if self.rotates else k

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        if self.theta.dim() == 1:
            return super().position_table(x, offset)
        length = x.size(-2)
        table = phases(self._angles(offset, length), offset, length)
        table = table.unflatten(-1, self.theta.shape).transpose(0, 1)  # (H, L, d)
        return table.to(x.device, complex_dtype(x))


def _log_decays(num_heads, layer, layers, device):
    heads = torch.arange(1, num_heads + 1, **float64_options(device))
    return -8 * heads / num_heads * (1 - layer / layers)
