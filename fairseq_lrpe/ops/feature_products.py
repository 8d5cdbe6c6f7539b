"""Products of queries and keys inside chunks if each feature has its own decay."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.constants import constant

BLOCK = 8
"""Number of rows of a block, in which each pair of rows has its own weights."""


class FeatureProducts:
    """Products s_ij = Σ_t exp(c_it − c_jt) q_it k_jt for j ≤ i, by the same operations for all values of c.

    Chunks are split into blocks of 8 rows. With the position p before a block, a query i of the block is
    multiplied by exp(c_i − c_p), and an earlier key j by exp(c_p − c_j). Inside a block, each pair has its
    own weights. Therefore, no weight exceeds 1 if no log decay is positive. Weights take O(C (C / 8 + 8) d)
    memory for each chunk.

    Args:
        q: queries (.., C, d).
        k: keys (.., C, d).
        sums: c (.., C, d), sums of the log decays from the start of the chunk.
    """

    def __init__(self, q: Tensor, k: Tensor, sums: Tensor):
        self.size = q.size(-2)
        padding = -self.size % BLOCK
        if padding:
            # Rows beyond the chunk do not decay.
            sums = torch.cat([sums, sums[..., -1:, :].expand(*sums.shape[:-2], padding, -1)], dim=-2)
            q, k = (F.pad(x, (0, 0, 0, padding)) for x in (q, k))
        self.blocks = (self.size + padding) // BLOCK
        self.q, self.k, c = (x.unflatten(-2, (self.blocks, BLOCK)) for x in (q, k, sums))
        before = F.pad(c[..., :-1, -1:, :], (0, 0, 0, 0, 1, 0))

        not_earlier = constant(_is_not_in_earlier_block, self.blocks, device=c.device)[..., None]
        exponents = (before - sums[..., None, :, :]).masked_fill(not_earlier, -torch.inf)
        self.key_weights = exponents.to(q).exp()  # (.., blocks, C, d)
        self.query_weights = (c - before).to(q).exp()  # (.., blocks, 8, d)
        later = constant(is_later, BLOCK, device=c.device)[..., None]
        exponents = (c[..., :, None, :] - c[..., None, :, :]).masked_fill(later, -torch.inf)
        self.pair_weights = exponents.to(q).exp()  # (.., blocks, 8, 8, d)

        self.weighted_q = self.q * self.query_weights
        self.weighted_k = k[..., None, :, :] * self.key_weights
        self.paired_k = self.k[..., None, :, :] * self.pair_weights

    def scores(self) -> Tensor:
        """Returns s (.., C, C), which is 0 for j > i."""
        earlier = (self.weighted_q @ self.weighted_k.mT).unflatten(-1, (self.blocks, BLOCK))
        inside = (self.paired_k @ self.q[..., None]).squeeze(-1)
        # The entries of ``inside`` are those with the same block of the query and of the key.
        scores = earlier + torch.diag_embed(inside.movedim(-3, -1), dim1=-4, dim2=-2)
        return scores.flatten(-2).flatten(-3, -2)[..., : self.size, : self.size]

    def gradients(self, g_scores: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the gradients of q and k (.., C, d) from that of the scores."""
        padding = self.blocks * BLOCK - self.size
        g_scores = F.pad(g_scores, (0, padding, 0, padding)) if padding else g_scores
        g_rows = g_scores.unflatten(-2, (self.blocks, BLOCK))
        g_q = (g_rows @ self.weighted_k) * self.query_weights
        g_k = ((g_rows.mT @ self.weighted_q) * self.key_weights).sum(-3)

        g_pairs = g_rows.unflatten(-1, (self.blocks, BLOCK)).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        g_q += (g_pairs[..., None, :] @ self.paired_k).squeeze(-2)
        paired_q = self.q[..., :, None, :] * self.pair_weights
        g_k_inside = (g_pairs.mT[..., None, :] @ paired_q.transpose(-3, -2)).squeeze(-2)
        g_k += g_k_inside.flatten(-3, -2)
        return g_q.flatten(-3, -2)[..., : self.size, :], g_k[..., : self.size, :]


def is_later(size: int, device: torch.device) -> Tensor:
    """Returns whether key j is after query i, (size, size)."""
    return torch.ones(size, size, device=device, dtype=torch.bool).triu(1)


def _is_not_in_earlier_block(blocks, device):
    """Returns whether key j is not before block n, (blocks, rows)."""
    starts = torch.arange(blocks, device=device) * BLOCK
    return torch.arange(blocks * BLOCK, device=device) >= starts[:, None]
