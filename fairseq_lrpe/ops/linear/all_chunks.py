"""Causal linear attention in few large operations, each of which computes all chunks at once.

Let Q, K and V be the C rows of chunk n, where V has additional columns of ones for the denominator, and S_n
the sum of k_j v_jᵀ over all keys before chunk n, each with the decay from key j to the last key before the
chunk. Then

    O = (W ∘ Q Kᵀ) V + (a ∘ Q) S_n,        S_n = Σ_{m<n} Γ_nm U_m,        U_m = (b ∘ K)ᵀ V,

where W_ij is the decay from key j to query i of a chunk, a_i the decay from its start to query i, b_j the
decay from key j to its end, and Γ_nm the decay from the end of chunk m to the start of chunk n. Γ is a small
triangular matrix, so that all S_n are one product.

On a GPU, a short operation takes less time than its start. Whatever the length, this form starts 30 to 40
kernels in a forward and backward pass without decay; see docs/gpu.md. It is also the form for
``torch.compile``, ``torch.func`` and second derivatives. On a CPU, :mod:`.causal` is faster, because it
processes only as many chunks at a time as fit a core's cache.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed, needs_plain_backward, plain_gradients
from fairseq_lrpe.ops.constants import constant
from fairseq_lrpe.ops.linear.chunks import ONES, Chunks
from fairseq_lrpe.ops.linear.decay_weights import Weights, log_decay_gradient
from fairseq_lrpe.ops.linear.state import Arguments, LinearState
from fairseq_lrpe.ops.precision import no_autocast

_MAX_SINGLE_CHUNK = 512
"""Length up to which a text without decay is one chunk; with decays, each length would need another W."""
_CHUNK_SIZE = 128
_FEATURE_CHUNK_SIZE = 64
_MAX_CHUNKS = 256
"""Number of chunks that are computed at once, which bounds the size of Γ."""


def attend_all_chunks(
    q: Tensor, k: Tensor, v: Tensor, args: Arguments
) -> Tensor | tuple[Tensor, LinearState]:
    """Computes causal :func:`fairseq_lrpe.ops.linear_attention` for as many queries as keys."""
    size = args.chunk_size or _default_size(q.size(2), args.log_decay)
    step = size * _MAX_CHUNKS
    if q.size(2) <= step:
        return _attend(q, k, v, args, size)
    log_decay = args.log_decay
    outputs = []
    state: Any = args.state
    for start in range(0, q.size(2), step):
        rows = slice(start, start + step)
        varies = log_decay is not None and log_decay.size(2) > 1
        decay = log_decay[:, :, rows] if log_decay is not None and varies else log_decay
        own = args._replace(log_decay=decay, state=state, return_state=True)
        out, state = _attend(q[:, :, rows], k[:, :, rows], v[:, :, rows], own, size)
        outputs.append(out)
    out = torch.cat(outputs, dim=2)
    return (out, state) if args.return_state else out


def _default_size(length, log_decay):
    if log_decay is not None and log_decay.size(-1) > 1:
        return _FEATURE_CHUNK_SIZE
    return length if log_decay is None and length <= _MAX_SINGLE_CHUNK else _CHUNK_SIZE


def _attend(q, k, v, args, size):
    """Computes attention with chunks of ``size`` rows, all at once."""
    initial = None if args.state is None else _join(args.state.kv, args.state.k_sum)
    options = args._replace(log_decay=None, state=None), max(1, size)
    inputs = q, k, v, initial, args.log_decay
    if is_transformed():
        out, final = _plain(*options, *inputs)
    else:
        out, final = _AllChunks.apply(*options, *inputs)
    if not args.return_state:
        return out
    return out, _parts(final, v.size(-1))


def _join(kv, k_sum):
    """Joins Σ k vᵀ and Σ k to the state of values with columns of ones, (B, H, d, dv + 4)."""
    return F.pad(torch.cat([kv, k_sum[..., None]], dim=-1), (0, ONES - 1))


def _parts(state, dv):
    return LinearState(state[..., :dv], state[..., dv])


def _plain(args, size, q, k, v, initial, log_decay):
    """Computes the output and the final state in differentiable operations."""
    chunks = Chunks(args, size, q, k, v, initial is not None, log_decay)
    out, _, final = chunks.attend(initial)
    dv = v.size(-1)
    if args.normalize:
        return out[..., :dv] / out[..., dv : dv + 1].clamp(min=args.eps), final
    return out[..., :dv], final


def plain_causal(
    args: Arguments, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, k_sum: Tensor, log_decay: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output and the state, computed in differentiable operations from the initial state."""
    own = args._replace(return_state=True)
    size = args.chunk_size or _default_size(q.size(2), log_decay)
    out, final = _plain(own, size, q, k, v, _join(kv, k_sum), log_decay)
    return out, *_parts(final, v.size(-1))


class _AllChunks(torch.autograd.Function):
    """Autograd function of causal linear attention.

    Inputs are q and k (B, H, L, d), v (B, H, L, dv), and the initial state with columns of ones
    (B, H, d, dv + 4) or None. Results are the output and the final state, which is None if it is not needed.
    The output and the gradients have the memory layout of v, q and k, so that merging the heads into
    (L, B, H·d) needs no copy. ``g_x`` is the gradient of ``x``. The backward pass recomputes the products
    inside chunks, and stores the states.
    """

    @staticmethod
    def forward(ctx, args, size, q, k, v, initial, log_decay):
        ctx.set_materialize_grads(False)
        chunks = Chunks(args, size, q, k, v, initial is not None, log_decay)
        product, states, final = chunks.attend(initial)
        dv = v.size(-1)
        out = torch.empty_like(v, dtype=args.dtype)
        divisor = None
        sign = None
        if args.normalize:
            sums = product[..., dv : dv + 1]
            divisor = sums.clamp(min=args.eps)
            out.copy_(product[..., :dv] / divisor)
            if any(ctx.needs_input_grad):
                # The gradient of the divisor goes to the first column of ones, with a factor of -1.
                unit = constant(_negative_unit, device=q.device, dtype=args.dtype)
                sign = (sums >= args.eps) * unit
        else:
            out.copy_(product[..., :dv])
        ctx.args = args
        ctx.size = size
        saved = out if args.normalize else None, divisor, sign, states, final
        ctx.save_for_backward(q, k, v, initial, log_decay, *saved, *chunks.weights)
        return out, final

    @staticmethod
    def backward(ctx, g_out, g_final):
        gradients = [g for g in (g_out, g_final) if g is not None]
        if not gradients:
            return (None,) * 7
        with no_autocast(gradients[0].device):  # callers may run it under autocast
            if not needs_plain_backward(*gradients):
                return None, None, *_AllChunks._backward(ctx, g_out, g_final)
            inputs = ctx.saved_tensors[:5]
            plain = partial(_plain, ctx.args, ctx.size)
            return None, None, *plain_gradients(plain, inputs, (g_out, g_final))

    @staticmethod
    def _backward(ctx, g_out, g_final):
        q, k, v, initial, log_decay, out, divisor, sign, states, final, *own = ctx.saved_tensors
        chunks = Chunks(ctx.args, ctx.size, q, k, v, initial is not None, weights=Weights(*own))
        if g_out is None:
            g_out = torch.zeros_like(v, dtype=ctx.args.dtype)
        if ctx.args.normalize:
            g_out = g_out / divisor
            g_sums = (g_out * out).sum(-1, keepdim=True) * sign
            g_out = torch.cat([g_out, g_sums], dim=-1)
        elif chunks.needs_sums:
            g_out = F.pad(g_out, (0, ONES))
        g = chunks.rows(g_out)

        g_q, g_k = chunks.scores_backward(torch.bmm(g, chunks.v.mT))
        g_v = torch.bmm(chunks.scores().mT, g)
        g_initial = None
        if chunks.has_states:
            read = chunks.weights.read
            update = chunks.weights.update
            g_terms = chunks.by_chunk(torch.bmm(chunks.weigh(chunks.q, read).mT, g))
            if chunks.has_final_state:
                g_final = torch.zeros_like(g_terms[:, :, 0]) if g_final is None else g_final
                g_terms = torch.cat([g_terms, g_final[:, :, None]], dim=2)
            g_updates = chunks.sum_over_chunks(g_terms, transposed=True)
            if initial is not None:
                g_initial = g_updates[:, :, 0]
                g_updates = g_updates[:, :, 1:]
            g_updates = g_updates.flatten(0, 2)
            chunks.add_product(g_q, g, states.mT, read)
            chunks.add_product(g_k, chunks.v, g_updates.mT, update)
            g_v.baddbmm_(chunks.weigh(chunks.k, update), g_updates)

        g_log_decay = None
        if ctx.needs_input_grad[6]:
            rows = torch.addcmul(chunks.q * g_q, chunks.k, g_k, value=-1)
            ends = _row_products(initial, g_initial), _row_products(final, g_final)
            g_log_decay = log_decay_gradient(log_decay, chunks.merge(rows), *ends)
        laid_out = [
            torch.empty_like(x).copy_(chunks.merge(g_x)[..., : x.size(-1)])
            for x, g_x in ((q, g_q), (k, g_k), (v, g_v))
        ]
        return *laid_out, g_initial, g_log_decay


def _negative_unit(device):
    return -torch.eye(1, ONES, device=device)[0]


def _row_products(state, gradient):
    """Returns the products of the rows of a state and its gradient (B, H, d), or None if one is None."""
    if state is None or gradient is None:
        return None
    return (state * gradient).sum(-1)
