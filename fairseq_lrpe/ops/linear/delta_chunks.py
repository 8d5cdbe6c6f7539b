"""Delta rules in chunks.

Let q_i, k_i, v_i and β_i be the C rows of a chunk, S the state before it, and c_i the sum of the log decays
up to row i, which are numbers, or vectors if each feature has its own decay. The change of the state at row i
is k_i u_iᵀ, where the rows u_i depend on each other and on S:

    u_i = β_i (v_i − Sᵀ (e^{c_i} ∘ k_i) − Σ_{j<i} ⟨k_i, k_j⟩ u_j),
    ⟨x_i, y_j⟩ = Σ_m e^{c_im − c_jm} x_im y_jm.

Forward substitution in the triangular system I + strictly lower(β_i ⟨k_i, k_j⟩) with the right sides
β_i e^{c_i} ∘ k_i and β_i v_i gives W and Z with U = Z − W S, the WY form of a product of reflections (Bischof
and Van Loan 1987; for the delta rule, Yang et al. 2024). With a_j = e^{c_C − c_j} ∘ k_j, rows of A,

    S' = (Diag(e^{c_C}) − Aᵀ W) S + Aᵀ Z,       o_i = Sᵀ (e^{c_i} ∘ q_i) + Σ_{j≤i} ⟨q_i, k_j⟩ u_j.

All chunks are computed at once, except for the recurrence of the states. No weight exceeds 1 beyond what
:func:`fairseq_lrpe.ops.decay.products_inside` allows, and sums of log decays are subtracted in float64.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.decay import products_inside
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.linear.decay_weights import differences, lower_triangle
from fairseq_lrpe.ops.linear.scan import scan

_CHUNK_SIZE = 64
_LARGE_CHUNK_SIZE = 128
"""Number of rows of a chunk on devices where each step of the recurrence is an operation to start."""


def delta_chunks(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor, size: int | None
) -> tuple[Tensor, Tensor]:
    """Returns the output and the final state of :func:`fairseq_lrpe.ops.delta_rule`.

    Args:
        q: queries (B, H, Lq, d) at the last Lq positions.
        k: keys (B, H, L, d).
        v: values (B, H, L, dv).
        beta: β (B, H, L).
        log_decay: log α (B, H, L, 1 or d), or None.
        state: initial state (B, H, d, dv).
        size: C, or None for the default.
    """
    length = k.size(2)
    if not length:
        return v, state
    if size is None:
        size = _CHUNK_SIZE if k.device.type == "cpu" else _LARGE_CHUNK_SIZE
    size = min(size, length)
    count = -(-length // size)
    queries = q.size(2)
    q = F.pad(q, (0, 0, length - queries, 0)) if queries < length else q
    q, k, v, beta = (_chunks(x, count, size) for x in (q, k, v, beta[..., None]))
    scaled_k = beta * k

    weighted_q = q
    weighted_k = scaled_k
    last_k = k
    total = None
    if log_decay is None:
        scores = torch.cat([q, scaled_k], dim=-2) @ k.mT
        scores_q, scores_k = scores.split(size, dim=-2)
        scores_q = scores_q * constant(lower_triangle, size, device=q.device, dtype=q.dtype)
    else:
        sums = _chunks(to_float64(log_decay), count, size).cumsum(-2)
        from_start = sums.to(q).exp()
        weighted_q = from_start * q
        weighted_k = from_start * scaled_k
        last_k = (sums[..., -1:, :] - sums).to(q).exp() * k
        total = from_start[..., -1, :]
        scores_q, scores_k = _weighted_products(q, scaled_k, k, sums)
    right_side = torch.cat([weighted_k, beta * v], dim=-1)
    solution = torch.linalg.solve_triangular(scores_k, right_side, upper=False, unitriangular=True)

    width = k.size(-1)
    w, z = solution.split([width, v.size(-1)], dim=-1)
    products, additions = (last_k.mT @ solution).split([width, v.size(-1)], dim=-1)
    one = constant(torch.eye, width, device=q.device, dtype=q.dtype)
    transitions = (one if total is None else one * total[..., None]) - products
    states = scan(transitions, additions, state.flatten(0, 1))
    before = states[:, :-1]
    out = weighted_q @ before + scores_q @ (z - w @ before)
    out = out.flatten(1, 2)[:, length - queries : length].unflatten(0, state.shape[:2])
    return out, states[:, -1].unflatten(0, state.shape[:2])


def _chunks(x, count, size):
    """Returns x (B, H, L, ·) as (B·H, N, C, ·), with zeros after the last row."""
    x = F.pad(x, (0, 0, 0, count * size - x.size(2))) if x.size(2) < count * size else x
    return x.reshape(-1, count, size, x.size(3))


def _weighted_products(q, scaled_k, k, sums):
    """Returns ⟨q_i, k_j⟩ and β_i ⟨k_i, k_j⟩ for j ≤ i, and 0 for other j."""
    if sums.size(-1) > 1:
        return products_inside(torch.stack([q, scaled_k]), k, sums).unbind()
    weights = differences(sums.squeeze(-1)).to(q).exp()
    scores = (torch.cat([q, scaled_k], dim=-2) @ k.mT).unflatten(-2, (2, -1)) * weights[..., None, :, :]
    return scores.unbind(-3)
