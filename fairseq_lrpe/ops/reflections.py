"""Scores of queries with keys that all reflections between them have turned, in blocks of keys."""

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 32
"""Keys of a block."""

_BLOCKS = 4
"""Blocks that are joined, so that products of d × d matrices are as few as blocks of 128 keys."""


class ReflectedKeys:
    """Keys k_j and vectors u_s, ready for q_iᵀ H_i ··· H_{j+1} k_j with H_s = I − u_s u_sᵀ of any queries.

    With the U, K and Q of a block of c positions as rows, T = (I + strictly lower(U Uᵀ))⁻¹ and the W = T U,
    Z = T strictly lower(U Kᵀ) that substitution finds (a form of the UT transform, Joffrain et al. 2006):

        inside a block        Q Kᵀ − lower(Q Uᵀ) Z        on and below the diagonal
        its queries, moved to its beginning               Q − lower(Q Uᵀ) W
        its keys, moved to its end                        K − Zᵀ U
        what moves keys over all of it                    M = I − Uᵀ W, d × d

    Of a part of the queries, all are moved to its beginning, and all keys before it to its beginning as well
    by products of M, whose norm is at most 1 while ‖u‖² ≤ 2. That costs about as much as Q Kᵀ.
    T is in float64: while u hardly changes, float32's rounding of U Uᵀ would grow tenfold in it.

    Args:
        k: (B, H, n, d).
        u: (B, H, m, d), of the last m keys; the keys before them are reflected already by all before these.
    """

    def __init__(self, k: Tensor, u: Tensor):
        new = u.size(2)
        rows = min(_ROWS, new)
        before, keys = k.split([k.size(2) - new, new], dim=2)
        keys, u = (F.pad(x, (0, 0, 0, -new % rows)).unflatten(2, (-1, rows)) for x in (keys, u))
        hits, exact = torch.cat([(u @ keys.mT).tril(-1), u], dim=-1), u.double()
        system = (exact @ exact.mT).tril(-1)
        solved = torch.linalg.solve_triangular(system, hits.double(), upper=False, unitriangular=True)
        solved = solved.to(u.dtype)
        z, w = solved.split([rows, u.size(-1)], dim=-1)
        ends = keys - z.mT @ u
        turns = torch.eye(u.size(-1), dtype=u.dtype, device=u.device) - u.mT @ w
        joined = (u.size(2) - 1) // _BLOCKS  # the last block is before no query
        self._joined = []
        if joined:
            many = (x[:, :, : joined * _BLOCKS].unflatten(2, (joined, -1)) for x in (ends, turns))
            self._joined = list(zip(*(x.unbind(2) for x in _join(*many)), strict=True))
        self._rows, self._length, self._before = rows, k.size(2), before
        # Lists of the blocks: the gradient of a slice would be as large as what it is a slice of.
        self._both, self._solved = torch.cat([keys, u], dim=-2).unbind(2), solved.unbind(2)
        self._spans = list(zip(ends.unbind(2), turns.unbind(2), strict=True))

    def scores(self, q: Tensor, first: int) -> Tensor:
        """Returns (B, H, Lq, Lk) of queries (B, H, Lq, d), the keys up to the last query's own.

        ``first`` is the first query's place among all keys. Entries of keys after their query are arbitrary.
        """
        rows, length = self._rows, q.size(2)
        block, front = divmod(first - self._before.size(2), rows)
        blocks = -(-(front + length) // rows)
        q = F.pad(q, (0, 0, front, blocks * rows - front - length)).unflatten(2, (blocks, rows))
        both, solved = (torch.stack(x[block : block + blocks], dim=2) for x in (self._both, self._solved))
        content, hits = (q @ both.mT).split(rows, dim=-1)
        found = torch.cat([content, q], dim=-1) - hits.tril() @ solved
        inside, starts = (x.unbind(2) for x in found.split([rows, q.size(-1)], dim=-1))
        columns, moved = [inside[-1]], starts[-1]
        for j in reversed(range(blocks - 1)):  # the queries of later blocks, moved to the end of this one
            ends, turn = self._spans[block + j]
            columns.append(torch.cat([inside[j], moved @ ends.mT], dim=2))
            moved = torch.cat([starts[j], moved @ turn], dim=2)
        columns = [F.pad(x, (0, 0, moved.size(2) - x.size(2), 0)) for x in reversed(columns)]
        scores = torch.cat([moved @ self._moved_to(block).mT, *columns], dim=-1)
        return scores[:, :, front : front + length, : first + length]

    def moved(self) -> Tensor:
        """Returns the keys (B, H, n, d), each reflected by all that come after it."""
        return self._moved_to(len(self._spans))[:, :, : self._length]

    def _moved_to(self, block):
        """The keys before a block, moved to its beginning."""
        joined = min(block // _BLOCKS, len(self._joined))
        found, turn = [], None
        for keys, own in reversed(self._joined[:joined] + self._spans[joined * _BLOCKS : block]):
            found.append(keys if turn is None else keys @ turn.mT)
            turn = own if turn is None else turn @ own
        rest = self._before
        if block == 1:  # of one new key it is a vector, where ``turn`` is a matrix
            w, u = self._solved[0][..., self._rows :], self._both[0][..., self._rows :, :]
            rest = rest - rest @ w.mT @ u
        elif found:
            rest = rest @ turn.mT
        return torch.cat([rest, *reversed(found)], dim=2) if found else rest


def _join(ends, turns):
    """Keys (.., m, rows, d) moved to the end of m blocks, (.., m·rows, d), and the M of all of them."""
    found, turn = [ends[..., -1, :, :]], turns[..., -1, :, :]
    for j in reversed(range(ends.size(-3) - 1)):
        found.append(ends[..., j, :, :] @ turn.mT)
        turn = turn @ turns[..., j, :, :]
    return torch.cat(found[::-1], dim=-2), turn
