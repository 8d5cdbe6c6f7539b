"""Causal linear attention in four to six launches of the kernel in :mod:`.triton_kernels`."""

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed, needs_plain_backward, plain_gradients
from fairseq_lrpe.ops.constants import is_tracing
from fairseq_lrpe.ops.linear.all_chunks import plain_causal
from fairseq_lrpe.ops.linear.chunk import chunk
from fairseq_lrpe.ops.linear.decay_weights import log_decay_gradient
from fairseq_lrpe.ops.linear.fla import missing_requirement
from fairseq_lrpe.ops.linear.state import Arguments, LinearState
from fairseq_lrpe.ops.precision import no_autocast

MAX_WIDTH = 64
"""Largest width of keys and values for which compiled kernels keep all numbers in registers."""
_CHUNK_SIZE = 16
_COLUMNS = 32  # of a result, which a program computes
_OPTIONS = {"num_warps": 4, "num_stages": 2}
_PROGRAMS = 256  # keep a GPU busy; heads of long sequences are split into segments to reach this number
_MIN_SEGMENT = 512


def triton(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` with this project's Triton kernels.

    The kernels multiply and sum about as exactly as float32, whatever the dtype of q, k and v. ``chunk``
    computes what they cannot: bidirectional attention, a single query, empty tensors, decays of each feature,
    widths above 64, transforms of ``torch.func``, and second derivatives. The kernels ignore ``chunk_size``.

    Raises:
        ValueError: if the kernels cannot run on this device, or for float64.
    """
    if reason := missing_requirement(q.device, "triton"):
        raise ValueError(f"backend 'triton' needs {reason}: use backend 'chunk'")
    if args.dtype == torch.float64:
        raise ValueError("backend 'triton' does not support float64 for q, k or v: use backend 'chunk'")
    if is_transformed() or not _can_compute(q, v, args):
        return chunk(q, k, v, args)
    kv, k_sum = args.state or (None, None)
    out, *state = _Triton.apply(args._replace(log_decay=None, state=None), q, k, v, kv, k_sum, args.log_decay)
    return (out, LinearState(*state)) if args.return_state else out


def _can_compute(q, v, args):
    if not args.causal or q.size(2) < 2 or q.numel() == 0 or v.numel() == 0:
        return False
    return max(q.size(3), v.size(3)) <= MAX_WIDTH and (args.log_decay is None or args.log_decay.size(-1) == 1)


class _Triton(torch.autograd.Function):
    """Autograd function of :func:`triton`, whose results are the output and the final state or None."""

    @staticmethod
    def forward(ctx, args, *inputs):
        compute: Any = _forward_op if is_tracing() else _forward
        out, additions, *rest = compute(*inputs, args.normalize, args.return_state, args.eps)
        quotient, sums = (out, rest.pop()) if args.normalize else (None, None)
        final = rest or (None, None)
        ctx.args = args
        ctx.save_for_backward(*inputs, *final, quotient, sums, additions)
        return out, *final

    @staticmethod
    def backward(ctx, g_out, g_kv, g_k_sum):
        *inputs, final_kv, final_k_sum, quotient, sums, additions = ctx.saved_tensors
        q, k, _, kv, k_sum, log_decay = inputs
        with no_autocast(q.device):  # callers may run it under autocast
            if needs_plain_backward(*(g for g in (g_out, g_kv, g_k_sum) if g is not None)):
                plain = partial(_plain, ctx.args)
                return None, *plain_gradients(plain, inputs, (g_out, g_kv, g_k_sum))
            needs_decay = ctx.needs_input_grad[6]
            compute: Any = _backward_op if is_tracing() else _backward
            g = g_out
            g_sums = None
            if sums is not None:
                g = g_out / sums.clamp(min=ctx.args.eps).unsqueeze(-1)
                g_sums = torch.where(sums >= ctx.args.eps, -(g * quotient).sum(-1), 0.0)
            given = g, g_sums, g_kv, g_k_sum, additions
            g_q, g_k, g_v, *g_initial = compute(*inputs, *given, needs_decay, ctx.args.eps)
            g_decay = None
            if needs_decay:
                first = None if kv is None else (kv * g_initial[0]).sum(3) + k_sum * g_initial[1]
                last = None if g_kv is None else (final_kv * g_kv).sum(3) + final_k_sum * g_k_sum
                g_decay = log_decay_gradient(log_decay, q * g_q - k * g_k, first, last)
            return None, g_q.to(q.dtype), g_k.to(k.dtype), g_v, *(g_initial or (None, None)), g_decay


def _plain(args, q, k, v, kv, k_sum, log_decay):
    if kv is None:
        kv, k_sum = (x.zero_() for x in _new_state(q, v))
    return plain_causal(args, q, k, v, kv, k_sum, log_decay)


def _new_like(x, dtype):
    """Returns an empty tensor like x, in the layout of x if its columns are adjacent, else contiguous."""
    layout = torch.preserve_format if x.stride(-1) == 1 else torch.contiguous_format
    return torch.empty_like(x, dtype=dtype, memory_format=layout)


def _new_state(q, v):
    shapes = (*q.shape[:2], q.size(3), v.size(3)), (*q.shape[:2], q.size(3))
    return [q.new_empty(shape, dtype=torch.float32) for shape in shapes]


def _new_additions(q, v):
    size = q.size(3) * (v.size(3) + 1) + 4 - q.size(3) % 4
    return q.new_empty(q.size(0) * q.size(1), _segments(q)[1] - 1, size, dtype=torch.float32)


def _segments(q):
    """Returns the number of chunks of a segment, and the number of segments."""
    chunks = -(-q.size(2) // _CHUNK_SIZE)
    most = torch.sym_min(q.size(2) // _MIN_SEGMENT, -(-_PROGRAMS // (q.size(0) * q.size(1))))
    size = -(-chunks // torch.sym_max(1, most))
    return size, -(-chunks // size)


def _attend(
    q, v, log_decay, eps, x, y, z, additions, out=None, *, first=(None, None), last=(), sums=None,
    g_sums=None, transposed=False, backwards=False,
):  # fmt: skip
    """Computes a row of the table in :mod:`.triton_kernels`, or additions to states if ``out`` is None."""
    from fairseq_lrpe.ops.linear.triton_kernels import attend

    chunks, segments = _segments(q)
    grid = q.size(0) * q.size(1), segments - (out is None), -(-z.size(3) // _COLUMNS)
    if grid[1] == 0:
        return
    x, y, z = (matrix if matrix.stride(-1) == 1 else matrix.contiguous() for matrix in (x, y, z))
    first = [state if state is None else state.contiguous() for state in first]
    decay_strides = [0, 0, 0]
    if log_decay is not None:
        # A decay that is the same for all sequences, heads or keys is not repeated in memory.
        sizes = zip(log_decay.shape[:3], log_decay.stride()[:3], strict=True)
        decay_strides = [0 if size == 1 else stride for size, stride in sizes]
    matrices = x, y, z, z if out is None else out
    strides = chain.from_iterable(matrix.stride()[:3] for matrix in matrices)
    with torch.cuda.device_of(q):
        attend[grid](
            x, y, z, log_decay, *first, additions, out, sums, *(last or (None, None)), g_sums,
            *decay_strides, *strides, q.size(1), q.size(2), chunks, segments, eps,
            q.size(3), v.size(3), max(16, 1 << (x.size(3) - 1).bit_length()), _COLUMNS, _CHUNK_SIZE,
            transposed, backwards, **_OPTIONS,
        )  # fmt: skip


def _forward(q, k, v, kv, k_sum, log_decay, normalize, has_final, eps, computes=True):
    """Returns the output, additions of segments, the final state if needed, and the denominator if needed."""
    out = _new_like(v, torch.float32)
    additions = _new_additions(q, v)
    final = _new_state(q, v) if has_final else []
    sums = q.new_empty(q.shape[:3], dtype=torch.float32) if normalize else None
    if computes:
        attend = partial(_attend, q, v, log_decay, eps, q, k, v, additions)
        attend()
        attend(out, first=(kv, k_sum), last=final, sums=sums)
    return [out, additions, *final, sums] if normalize else [out, additions, *final]


def _backward(
    q, k, v, kv, k_sum, log_decay, g, g_sums, g_kv, g_k_sum, additions, needs_decay, eps, computes=True
):
    """Returns the gradients of q, k, v, and, if there is one, of the initial state."""
    # The gradient of the decay is a difference of large numbers.
    g_q, g_k = (_new_like(x, torch.float32 if needs_decay else x.dtype) for x in (q, k))
    g_v = _new_like(v, v.dtype)
    g_initial = [] if kv is None else _new_state(q, v)
    if computes:
        attend = partial(_attend, q, v, log_decay, eps)
        attend(g, v, k, additions, g_q, first=(kv, k_sum), g_sums=g_sums, transposed=True)
        later = _new_additions(q, v)
        options = {"first": (g_kv, g_k_sum), "g_sums": g_sums, "backwards": True}
        attend(k, q, g, later, **options)
        attend(v, g, q, later, g_k, transposed=True, **options)
        attend(k, q, g, later, g_v, last=g_initial, **options)
    return [g_q, g_k, g_v, *g_initial]


_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? kv, Tensor? k_sum, Tensor? log_decay"
_SAVED = "Tensor g, Tensor? g_sums, Tensor? g_kv, Tensor? g_k_sum, Tensor additions"


def _operator(name, function, arguments):
    """Returns the function as an operator, which torch.compile calls without tracing its code."""
    schema = f"({_INPUTS}, {arguments}, float eps) -> Tensor[]"
    operator = torch.library.custom_op(f"fairseq_lrpe::{name}", function, mutates_args=(), schema=schema)
    operator.register_fake(partial(function, computes=False))
    return operator


_forward_op = _operator("triton_forward", _forward, "bool normalize, bool has_final")
_backward_op = _operator("triton_backward", _backward, _SAVED + ", bool needs_decay")
