"""Measures time and memory of training and decoding steps of causal attention. Requires only torch."""

import math
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_lrpe.benchmarks.shared import DEVICE, interleave, resident_memory, seconds
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.linear_attention.triton import fla_missing_requirement

TOKENS = 4096
"""Number of tokens per batch."""

DECODING_STEPS, WARM_UP_STEPS = 20, 10
"""Numbers of measured decoding steps, and of discarded steps before them, per round."""


def masked(q, k, v):
    """Computes causal linear attention as the papers' training code does, with an n × n mask."""
    n = q.size(2)
    scores = (q @ k.mT) * torch.ones(n, n, device=q.device).tril()
    return scores @ v / scores.sum(-1, keepdim=True).clamp(min=1e-6)


def fla(q, k, v):
    """Computes causal linear attention with a function of the package flash-linear-attention."""
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn(*(x.transpose(1, 2) for x in (q, k, v)), scale=1.0, normalize=True)[0]


def flash(q, k, v):
    """Computes causal softmax attention with torch's FlashAttention kernel, which requires half precision."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Implementation(NamedTuple):
    """A function of (q, k, v) that computes causal attention, and the dtype of its inputs."""

    compute: Callable
    dtype: torch.dtype = torch.float32


IMPLEMENTATIONS = {
    "chunk": Implementation(partial(linear_attention, causal=True, normalize=True, backend="chunk")),
    "masked n × n": Implementation(masked),
    "softmax": Implementation(partial(F.scaled_dot_product_attention, is_causal=True)),
}
if DEVICE == "cuda":
    IMPLEMENTATIONS["softmax float16"] = Implementation(flash, torch.float16)
    IMPLEMENTATIONS["chunk float16"] = Implementation(IMPLEMENTATIONS["chunk"].compute, torch.float16)
    if fla_missing_requirement(torch.device(DEVICE)) is None:
        IMPLEMENTATIONS["auto"] = Implementation(partial(linear_attention, causal=True, normalize=True))
        IMPLEMENTATIONS["fla"] = Implementation(fla)
        for name in ("auto", "fla"):
            half = Implementation(IMPLEMENTATIONS[name].compute, torch.bfloat16)
            IMPLEMENTATIONS[f"{name} bfloat16"] = half


def batch_size(length: int) -> int:
    """Returns the number of sequences with TOKENS tokens in total, at least one."""
    return max(1, TOKENS // length)


def random_inputs(name: str, length: int, heads: int, width: int) -> tuple:
    """Returns random inputs of an implementation.

    Returns:
        [q, k, v], which are positive like the output of a feature map, and a gradient of the output. All have
        the shape (batch, heads, length, width).
    """
    g = torch.Generator().manual_seed(0)
    shape = batch_size(length), heads, length, width
    tensors = (torch.rand(shape, generator=g) for _ in range(4))
    q, k, v, gradient = (x.to(DEVICE, IMPLEMENTATIONS[name].dtype) for x in tensors)
    return [x.requires_grad_() for x in (q, k, v)], gradient


def step(name: str, qkv: list, gradient) -> None:
    """Runs a forward and a backward pass, which allocates new gradients, like a step after ``zero_grad``."""
    for x in qkv:
        x.grad = None
    IMPLEMENTATIONS[name].compute(*qkv).backward(gradient)


def step_times(names: list[str], length: int, heads: int, width: int, rounds: Iterable) -> dict:
    """Returns {name: seconds in each round} of training steps that alternate between implementations.

    The first of the ``rounds`` is discarded.
    """
    by_dtype = {IMPLEMENTATIONS[name].dtype: name for name in names}
    inputs = {dtype: random_inputs(name, length, heads, width) for dtype, name in by_dtype.items()}
    steps = {name: partial(step, name, *inputs[IMPLEMENTATIONS[name].dtype]) for name in names}
    return interleave(steps, rounds)


def peak_memory(name: str, length: int, heads: int, width: int) -> tuple[int, int]:
    """Returns :func:`step_memory` of a step after a small step, in which libraries allocate buffers."""
    step(name, *random_inputs(name, 64, 1, width))
    return step_memory(name, *random_inputs(name, length, heads, width))


def step_memory(name: str, qkv: list, gradient) -> tuple[int, int]:
    """Measures the peak memory of a training step.

    Returns:
        The peak in bytes beyond q, k, v and the gradients of q, k, v and the output, and the total peak in
        bytes, of the GPU memory or on a CPU of the process.
    """
    for x in qkv:
        x.grad = None
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(name, qkv, gradient)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM
        before = resident_memory("VmRSS")
        step(name, qkv, gradient)
        peak = resident_memory("VmHWM")
    return peak - before - sum(x.grad.nbytes for x in qkv), peak


def decoding_times(prefixes: list[int], heads: int, width: int, rounds: Iterable) -> dict[str, dict]:
    """Measures decoding steps of linear and softmax attention after prefixes of these lengths.

    Returns:
        {"chunk" or "softmax": {length of the prefix: (seconds of each step, bytes of the state)}}.
    """
    linear = partial(linear_attention, causal=True, normalize=True, return_state=True)

    def softmax(q, k, v, state):
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, (k, v), strict=True))
        return F.scaled_dot_product_attention(q, k, v)

    def random_qkv(length):
        return [torch.rand(1, heads, length, width, device=DEVICE) for _ in range(3)]

    results, steps, token = {"chunk": {}, "softmax": {}}, [], random_qkv(1)
    for n in prefixes:
        q, k, v = random_qkv(n)
        for name, function, state in (("chunk", linear, linear(q, k, v)[1]), ("softmax", softmax, (k, v))):
            results[name][n] = [], sum(x.nbytes for x in state)
            steps.append((partial(function, *token, state=state), results[name][n][0]))
    for _ in rounds:
        for function, times in steps:
            # The first steps are slower because other steps have filled the CPU's caches.
            times += [seconds(function) for _ in range(WARM_UP_STEPS + DECODING_STEPS)][WARM_UP_STEPS:]
    return results


def scaling_exponent(lengths: list[int], values: list[float]) -> float:
    """Returns the least-squares slope of log(value) over log(length), or nan if a value is not positive."""
    if min(values) <= 0:  # small inputs can reuse memory of earlier steps
        return math.nan
    return statistics.linear_regression(*([math.log(a) for a in row] for row in (lengths, values))).slope
