"""LieRE: Lie rotational positional encodings."""

import math

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.table import TableEncoding
from fairseq_lrpe.ops.autograd import apply
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.orthogonal import upper_triangle
from fairseq_lrpe.ops.position_index import PositionIndex, coordinates, is_consecutive
from fairseq_lrpe.ops.precision import sum_dtype

_BLOCK_SIZE = 64
"""Number of positions t of a block that starts at s, where exp((s + t) A) is exp(s A) exp(t A)."""


@register_encoding(
    "liere", block_size="rows of the blocks of LieRE's rotation matrices; 0 means the head dimension"
)
class LieRE(TableEncoding):
    """Multiplies q and k by a rotation R(p) = exp(Σ_a p_a A_a) (Ostmeier et al. 2025).

    p_a is a coordinate of the position, divided by ``max_positions`` − 1, so that the coordinates of an image
    are in [0, 1] as in the authors' code (StanfordMIMI/LieRE, models/rope_vit.py). A_a is a learned
    skew-symmetric matrix (d, d) for each layer, head and axis. With ``block_size`` b, it is block-diagonal
    with d/b blocks (b, b); b = 2 has the form of RoPE-Mixed.

    In a sequence, the scores depend only on the difference of positions. In an image, this holds only if A_0
    and A_1 commute, as for b = 2; otherwise, R(p)ᵀ R(p') also depends on the absolute position.

    The entries above the diagonal are initialized uniformly in (0, 2π), as in the authors' code. The authors'
    models have a class token, whose rotation is the identity; the models here have none. The authors use
    softmax attention; the method's linear attention has a LayerNorm, like that of RoPE-Mixed.

    The parameter ``generators`` (axes, H, d/b, b(b−1)/2) contains the entries above the diagonal. The
    rotations of all L positions take O(L d b²) time and O(L d b) memory per head for the whole batch, in
    float64; multiplying by them takes O(L d b) time per sequence.

    Raises:
        ValueError: if d is not a multiple of b, or b is 1.
    """

    rotated_features = "all"
    multidimensional = True
    float32_parameters = ("generators",)

    def __init__(self, *, block_size: int = 0, **shared):
        super().__init__(**shared)
        size = block_size or self.head_dim
        if size < 2 or self.head_dim % size:
            raise ValueError(
                f"liere needs a block size of at least 2 that divides head_dim {self.head_dim}, not {size}"
            )
        self.block_size = size
        shape = (self.axes, self.num_heads, self.head_dim // size, size * (size - 1) // 2)
        self.generators = nn.Parameter(2 * math.pi * torch.rand(*shape))

    def encode(self, x: Tensor, table: Tensor) -> Tensor:
        """Multiplies the blocks of x (B, H, L, d) by matrices ``table`` (H, L, d/b, b, b)."""
        blocks = x.to(table.dtype).unflatten(-1, table.shape[2:4])
        return torch.einsum("hlnij,bhlnj->bhlni", table, blocks).flatten(-2).to(x.dtype)

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        inverse = self.position_table(k[:, :, :1], shift).mT
        return self.encode(k, inverse.expand(-1, k.size(-2), -1, -1, -1))

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        """Returns the rotations (H, L, d/b, b, b) of the positions of x (B, H, L, d)."""
        length = x.size(-2)
        dtype = sum_dtype(x.dtype)
        if not is_consecutive(offset) or length <= _BLOCK_SIZE:
            return self._exponentials(coordinates(offset, length, x.device)).to(x.device, dtype)
        # exp((s + t) A) = exp(s A) exp(t A), so that a sequence needs fewer exponentials.
        first = offset % _BLOCK_SIZE
        starts = coordinates(0, (first + length - 1) // _BLOCK_SIZE + 1, x.device) * _BLOCK_SIZE
        blocks = self._exponentials(starts + offset - first)
        inner = self._exponentials(coordinates(0, _BLOCK_SIZE, x.device))
        rotations = (blocks.unsqueeze(2) @ inner.unsqueeze(1)).flatten(1, 2).narrow(1, first, length)
        return rotations.to(x.device, dtype)

    def _exponentials(self, position):
        """Returns exp(Σ_a p_a A_a), (H, n, d/b, b, b) in float64, for positions (n, axes)."""
        position = position / max(1, self.max_positions - 1)
        # In float32, the exponential of a distant position would not be a rotation.
        entries = torch.einsum("la,ahne->hlne", position, to_float64(self.generators))
        size = self.block_size
        upper = constant(upper_triangle, size, device=entries.device)
        matrix = entries.new_zeros(*entries.shape[:-1], size, size)
        rows, columns = upper
        matrix[..., rows, columns] = entries
        return apply(_MatrixExponential, matrix - matrix.mT)


class _MatrixExponential(torch.autograd.Function):
    """Matrix exponential with a backward pass whose relative error does not depend on the gradients' size.

    The gradient with respect to A is the upper right block of exp([[Aᵀ, G], [0, Aᵀ]]), where G is the
    incoming gradient. torch's rounding error depends on the size of G; here, G is scaled to a maximum of 1.
    """

    plain = torch.matrix_exp

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.matrix_exp(a)

    @staticmethod
    def backward(ctx, g):
        a = ctx.saved_tensors[0].mT
        size = g.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
        rows = torch.cat([a, g / size], dim=-1), torch.cat([torch.zeros_like(a), a], dim=-1)
        return size * torch.matrix_exp(torch.cat(rows, dim=-2))[..., : a.size(-1), a.size(-1) :]
