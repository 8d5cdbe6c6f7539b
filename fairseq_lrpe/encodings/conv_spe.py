"""ConvSPE: stochastic positional encoding by convolutions of noise."""

import collections

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.spe import GatedSPE
from fairseq_lrpe.ops.constants import Constants, normal_noise
from fairseq_lrpe.ops.position_index import as_positions, integer_positions, is_consecutive
from fairseq_lrpe.ops.precision import sum_dtype
from fairseq_lrpe.ops.relative import expand_distances

_BLOCK_SIZE = 64
"""Number of positions whose noise is drawn, and convolved, at a time."""

_MAX_BLOCKS = 2**20
"""Number of blocks per layer that have their own seed."""

_MAX_INDEXED_POSITIONS = 4096
"""If non-consecutive positions are all below this, noise is drawn for every position up to the largest."""


@register_encoding("conv_spe", kernel_size="number of positions in ConvSPE's kernels")
class ConvSPE(GatedSPE):
    """Multiplies q and k by convolved noise; expected scores depend on i − j only (Liutkus et al. 2021).

    The encoding is gated ConvSPE with R = d realizations (Liutkus et al. 2021, Sec. 3.2, and its public code,
    aliutkus/spe, src/pytorch/spe/spe.py). With kernels u = kernel_q and w = kernel_k of P positions, and g =
    sigmoid(gate), feature n of a query is multiplied by row n of a matrix (d, R), and the rows are added:

        q̂_i = Σ_n q_in (√(1−g_n) Σ_p u_np Z_{n,i+p} + √g_n Z'_n),   0 ≤ p < P.

    Keys are encoded in the same way with w instead of u, so that

        E[q̂_i·k̂_j] = Σ_n q_in k_jn ((1−g_n) Σ_p u_np w_{n,p+i−j} + g_n),

    where w_np is 0 for p < 0 and p ≥ P. At distances of P or more, only the term g_n remains.

    The noise is normal with variance 1/√(dR); Z differs between positions, and Z' does not. In evaluation,
    each block of 64 positions has its own seed, so that the noise of a position depends on neither the offset
    nor the length. The public code draws noise for the length of each input.

    Parameters are ``kernel_q`` and ``kernel_k`` (H, d, P), and ``gate`` (H, d). The initial kernels are
    uniform in (0, √(2/P)), as in the public code, with its default P = 200. For the whole batch, computing
    the matrices takes O(L P d R) time and O(L d R) memory per head; multiplying by them takes O(L d R) time
    per sequence.

    Raises:
        ValueError: for a kernel size below 1.
    """

    def __init__(self, *, kernel_size: int = 200, **shared):
        super().__init__(**shared)
        if kernel_size < 1:
            raise ValueError(f"conv_spe needs a kernel size of at least 1, not {kernel_size}")
        shape = (self.num_heads, self.head_dim, kernel_size)
        scale = (2 / kernel_size) ** 0.5
        self.kernel_q = nn.Parameter(torch.rand(*shape) * scale)
        self.kernel_k = nn.Parameter(torch.rand(*shape) * scale)
        self.add_gate(draws=1)
        # A decoding step needs the noise of this many blocks at most, which the next step needs again.
        self._blocks = Constants(maxsize=(kernel_size + _BLOCK_SIZE - 2) // _BLOCK_SIZE + 1)

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        q_offset = context.q_offset
        k_offset = context.k_offset
        if is_consecutive(q_offset) or q_offset.max_position < _MAX_INDEXED_POSITIONS:
            codes = self._consecutive_codes(_range(q, q_offset), _range(k, k_offset))
        else:
            codes = self._far_codes()
        [constant] = self.draw()

        def encode(x, kernel, offset):
            return torch.einsum("bhld,hdlr->bhlr", x, codes(x, kernel, offset, constant).to(x.dtype))

        return encode(q, self.kernel_q, q_offset), encode(k, self.kernel_k, k_offset)

    def _consecutive_codes(self, *ranges):
        """Returns a function that computes the matrices of positions that are in one of ``ranges``."""
        first = min(r.start for r in ranges)
        end = max(r.stop for r in ranges)
        count = end - first + self.kernel_q.size(-1) - 1
        if self.training:
            noise = self.random_noise(self.num_heads, self.head_dim, count, self.head_dim)
        else:
            noise = self._noise(first, count, self._fixed_block)

        def codes(x, kernel, offset, constant):
            positions = _range(x, offset)
            window = noise.narrow(2, positions.start - first, len(positions) + kernel.size(-1) - 1)
            codes = self._codes(kernel, window, constant)
            if is_consecutive(offset):
                return codes
            return codes[:, :, integer_positions(offset.query_positions)]

        return codes

    def _far_codes(self):
        """Returns a function that computes matrices only for the blocks that contain a given position."""
        shape = self.num_heads, self.head_dim, _BLOCK_SIZE, self.head_dim
        drawn: dict[int, Tensor] = collections.defaultdict(lambda: self.random_noise(*shape))
        block = drawn.__getitem__ if self.training else self._fixed_block

        def codes(x, kernel, offset, constant):
            at = integer_positions(offset.query_positions)
            blocks, index = (at // _BLOCK_SIZE).unique(return_inverse=True)
            count = _BLOCK_SIZE + kernel.size(-1) - 1
            noise = [self._noise(n * _BLOCK_SIZE, count, block) for n in blocks.tolist()]
            codes = torch.cat([self._codes(kernel, part, constant) for part in noise], dim=2)
            return codes[:, :, index * _BLOCK_SIZE + at % _BLOCK_SIZE]

        return codes

    def _noise(self, first, count, block):
        """Returns the noise (H, d, count, R) from position ``first`` on; ``block(n)`` is that of block n."""
        start = first // _BLOCK_SIZE
        end = (first + max(1, count) - 1) // _BLOCK_SIZE + 1
        blocks = [block(n) for n in range(start, end)]
        return torch.cat(blocks, dim=2).narrow(2, first - start * _BLOCK_SIZE, count)

    def _fixed_block(self, block):
        """Returns the noise (H, d, _BLOCK_SIZE, R) of a block of positions in evaluation."""
        shape = self.num_heads, self.head_dim, _BLOCK_SIZE, self.head_dim
        return self._blocks(normal_noise, self.layer * _MAX_BLOCKS + block, *shape, device=self.gate.device)

    def _codes(self, kernel, noise, constant):
        """Returns the matrices (H, d, L, R) by which the features of L positions are multiplied.

        Args:
            kernel: (H, d, P).
            noise: (H, d, L + P − 1, R).
            constant: noise (H, d, R) that does not depend on the position.
        """
        dtype = sum_dtype(kernel.dtype)
        noise, kernel, size = noise.to(dtype), kernel.to(dtype), kernel.size(-1)
        length = noise.size(2) - size + 1
        rows = max(1, min(length, _BLOCK_SIZE))
        # A convolution of ``rows`` positions as a product with a matrix, which has the kernel in each row.
        matrix = expand_distances(F.pad(kernel, (rows - 1, 0)), rows, rows + size - 1)
        blocks = []
        for start in range(0, max(1, length), rows):
            count = min(rows, length - start)
            window = noise[:, :, start : start + count + size - 1]
            blocks.append(matrix[:, :, :count, : count + size - 1] @ window)
        positional, unpositional = self.amplitudes()
        noise_part = positional[..., None] * torch.cat(blocks, dim=2)
        return noise_part + unpositional[..., None] * constant.unsqueeze(2)


def _range(x, offset):
    """Returns the range of the positions of x."""
    end = as_positions(offset).end(x.size(-2))
    return range(offset, end) if is_consecutive(offset) else range(end)
