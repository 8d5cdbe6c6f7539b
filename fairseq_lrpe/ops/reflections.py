"""Householder reflections, and attention scores that reflect a key at each position up to the query."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.float64 import to_float64

_BLOCK_SIZE = 32
"""Number of keys per block."""

_MERGED_BLOCKS = 4
"""Number of adjacent blocks that are merged into one, which saves products of d × d matrices."""


def householder(x: Tensor, v: Tensor) -> Tensor:
    """Returns (I − 2 v vᵀ / vᵀv) x for every row of x (..., d), or x for v = 0 (LRPE TMLR Eq. 73).

    v is (d,).
    """
    v = v.to(x.dtype)
    square = v.dot(v).clamp(min=torch.finfo(v.dtype).tiny)
    return x - (x @ v).unsqueeze(-1) * (v * (2 / square))


class ReflectedKeys:
    """Keys for the scores q_iᵀ H_i ··· H_{j+1} k_j of queries q_i and keys k_j, with H_s = I − u_s u_sᵀ.

    The sequence is split into blocks of c positions. Let U, K and Q (c, d) be the vectors, keys and queries
    of a block, and T = (I + strictly lower(U Uᵀ))⁻¹. Forward substitution gives W = T U and
    Z = T strictly lower(U Kᵀ), a form of the UT transform (Joffrain et al. 2006). Then

        scores of the block's own keys             Q Kᵀ − lower(Q Uᵀ) Z, on and below the diagonal
        H_start ··· H_i q_i, in rows               Q − lower(Q Uᵀ) W
        H_end ··· H_{j+1} k_j, in rows             K − Zᵀ U
        transition H_end ··· H_start               M = I − Uᵀ W, d × d

    Scores with keys of earlier blocks are products of the second and third lines, with the M of all blocks in
    between. The norm of M is at most 1 for ‖u‖² ≤ 2. The cost is about twice that of Q Kᵀ.
    The triangular system is solved in float64, because in float32 the rounding errors of U Uᵀ are amplified
    tenfold if u is nearly constant.

    Args:
        k: keys (B, H, n, d).
        u: vectors (B, H, m, d) of the last m keys. Earlier keys are those that :meth:`final_keys` returned
            for the preceding part of the sequence.
    """

    def __init__(self, k: Tensor, u: Tensor):
        num_new = u.size(2)
        block_size = max(1, min(_BLOCK_SIZE, num_new))
        earlier, keys = k.split([k.size(2) - num_new, num_new], dim=2)
        keys, u = (
            F.pad(x, (0, 0, 0, -num_new % block_size)).unflatten(2, (-(-num_new // block_size), block_size))
            for x in (keys, u)
        )
        right_side = torch.cat([(u @ keys.mT).tril(-1), u], dim=-1)
        u64 = to_float64(u)
        system = (u64 @ u64.mT).tril(-1)
        solution = torch.linalg.solve_triangular(
            system, to_float64(right_side), upper=False, unitriangular=True
        )
        solution = solution.to(u)
        z, w = solution.split([block_size, u.size(-1)], dim=-1)
        end_keys = keys - z.mT @ u
        transitions = torch.eye(u.size(-1), dtype=u.dtype, device=u.device) - u.mT @ w
        # The last block is not merged, because no later query uses it.
        num_merged = max(0, u.size(2) - 1) // _MERGED_BLOCKS
        self._merged = []
        if num_merged:
            groups = [
                x[:, :, : num_merged * _MERGED_BLOCKS].unflatten(2, (num_merged, -1)).unbind(3)
                for x in (end_keys, transitions)
            ]
            moved, transition = _merge_blocks(list(zip(*groups, strict=True)))
            self._merged = list(zip(torch.cat(moved, dim=-2).unbind(2), transition.unbind(2), strict=True))
        self._block_size = block_size
        self._num_keys = k.size(2)
        self._earlier = earlier
        # Blocks are kept in lists, because the gradient of a slice would be as large as the whole tensor.
        self._keys_and_u = torch.cat([keys, u], dim=-2).unbind(2)
        self._solution = solution.unbind(2)
        self._blocks = list(zip(end_keys.unbind(2), transitions.unbind(2), strict=True))

    def scores(self, q: Tensor, q_offset: int) -> Tensor:
        """Returns the scores (B, H, Lq, q_offset + Lq) of the queries with all keys up to the last query.

        Entries of keys after their query are arbitrary.

        Args:
            q: queries (B, H, Lq, d).
            q_offset: position of the first query; key 0 is at position 0.
        """
        block_size = self._block_size
        length = q.size(2)
        position = q_offset - self._earlier.size(2)
        # torch.compile has no divmod
        first = position // block_size
        front = position % block_size
        num_blocks = -(-(front + length) // block_size)
        q = F.pad(q, (0, 0, front, num_blocks * block_size - front - length))
        q = q.unflatten(2, (num_blocks, block_size))
        keys_and_u, solution = (
            torch.stack(x[first : first + num_blocks], dim=2) for x in (self._keys_and_u, self._solution)
        )
        qk, qu = (q @ keys_and_u.mT).split(block_size, dim=-1)
        result = torch.cat([qk, q], dim=-1) - qu.tril() @ solution
        inner, start_q = (x.unbind(2) for x in result.split([block_size, q.size(-1)], dim=-1))
        columns = [inner[-1]]
        moved = start_q[-1]
        # ``moved`` contains the queries of later blocks, reflected at all positions after block j.
        for j in reversed(range(num_blocks - 1)):
            end_keys, transition = self._blocks[first + j]
            columns.append(torch.cat([inner[j], moved @ end_keys.mT], dim=2))
            moved = torch.cat([start_q[j], moved @ transition], dim=2)
        columns = [F.pad(x, (0, 0, moved.size(2) - x.size(2), 0)) for x in reversed(columns)]
        scores = torch.cat([moved @ self._keys_before(first).mT, *columns], dim=-1)
        return scores[:, :, front : front + length, : q_offset + length]

    def final_keys(self) -> Tensor:
        """Returns the keys (B, H, n, d), each reflected at all later positions."""
        return self._keys_before(len(self._blocks))[:, :, : self._num_keys]

    def _keys_before(self, block):
        """Returns the keys before a block, each reflected at all later positions before the block."""
        num_merged = min(block // _MERGED_BLOCKS, len(self._merged))
        blocks = self._merged[:num_merged] + self._blocks[num_merged * _MERGED_BLOCKS : block]
        moved, transition = _merge_blocks(blocks)
        earlier = self._earlier
        if block == 1:  # uses W and U, which are cheaper than the d × d transition for a single new key
            w = self._solution[0][..., self._block_size :]
            u = self._keys_and_u[0][..., self._block_size :, :]
            earlier = earlier - earlier @ w.mT @ u
        elif moved:
            earlier = earlier @ transition.mT
        return torch.cat([earlier, *moved], dim=2) if moved else earlier


def _merge_blocks(blocks):
    """Merges adjacent blocks into one.

    Args:
        blocks: pairs of the keys (..., c, d) of a block, reflected at all later positions of the block, and
            its transition (..., d, d).

    Returns:
        A list of the keys of each block, reflected at all later positions of all blocks, and the transition
        of the merged block, which is None if there are no blocks.
    """
    moved = []
    transition = None
    for keys, step in reversed(blocks):
        moved.append(keys if transition is None else keys @ transition.mT)
        transition = step if transition is None else transition @ step
    return moved[::-1], transition
