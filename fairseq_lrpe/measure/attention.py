"""Times attention, ours and its alternatives: forward and backward pass, peak memory, a decoding step.

``benchmark`` and ``gpu_check`` show what is measured here. Needs torch alone.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_lrpe.measure.shared import resident, seconds
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.linear_attention.fla import fla_lacks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 4096
COUNTED_STEPS = 20
"""Decoding steps of a round that are counted."""


def masked(q, k, v):
    """Computes the n × n form of the papers' training code: all scores, a mask, the products with v and 1."""
    n = q.size(2)
    scores = (q @ k.mT) * torch.ones(n, n, device=q.device).tril()
    return scores @ v / scores.sum(-1, keepdim=True).clamp(min=1e-6)


def fla_directly(q, k, v):
    """Computes the same with flash-linear-attention's own function."""
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn(*(x.transpose(1, 2) for x in (q, k, v)), scale=1.0, normalize=True)[0]


def flash(q, k, v):
    """Computes causal softmax attention by torch's flash kernel, which takes half precision alone."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Contender(NamedTuple):
    """A way to compute causal attention, and the dtype in which it gets q, k and v."""

    compute: Callable
    dtype: torch.dtype = torch.float32


CONTENDERS = {
    "chunk": Contender(partial(linear_attention, causal=True, normalize=True, backend="chunk")),
    "masked n × n": Contender(masked),
    "softmax": Contender(partial(F.scaled_dot_product_attention, is_causal=True)),
}
if DEVICE == "cuda":
    CONTENDERS["softmax float16"] = Contender(flash, torch.float16)
    if fla_lacks(torch.device(DEVICE)) is None:
        CONTENDERS["auto"] = Contender(partial(linear_attention, causal=True, normalize=True))
        CONTENDERS["fla"] = Contender(fla_directly)


def sequences(length: int) -> int:
    """Returns how many sequences a batch has: as many as make TOKENS tokens, and at least one."""
    return max(1, TOKENS // length)


def inputs(name: str, length: int, heads: int, width: int) -> tuple:
    """Returns [q, k, v] for a contender, positive as behind a feature map, and a gradient of the output."""
    g = torch.Generator().manual_seed(0)
    shape = sequences(length), heads, length, width
    drawn = (torch.rand(shape, generator=g) for _ in range(4))
    q, k, v, gradient = (x.to(DEVICE, CONTENDERS[name].dtype) for x in drawn)
    return [x.requires_grad_() for x in (q, k, v)], gradient


def step(name: str, qkv: list, gradient) -> None:
    """Runs forward and backward; the gradients are made anew, as in a training step after ``zero_grad``."""
    for x in qkv:
        x.grad = None
    CONTENDERS[name].compute(*qkv).backward(gradient)


def times(names: list[str], length: int, heads: int, width: int, rounds: Iterable) -> dict[str, list[float]]:
    """Returns {name: seconds of every round}, the names in turn, without the first of the rounds."""
    dtypes = {CONTENDERS[name].dtype: name for name in names}
    given = {dtype: inputs(name, length, heads, width) for dtype, name in dtypes.items()}
    found = {name: [] for name in names}
    for _ in rounds:
        for name in names:
            found[name].append(seconds(partial(step, name, *given[CONTENDERS[name].dtype])))
    return {name: spent[1:] for name, spent in found.items()}


def peak(name: str, length: int, heads: int, width: int) -> tuple[int, int]:
    """Returns :func:`peak_of_step` after a small step: what libraries keep for themselves does not count."""
    step(name, *inputs(name, 64, 1, width))
    return peak_of_step(name, *inputs(name, length, heads, width))


def peak_of_step(name: str, qkv: list, gradient) -> tuple[int, int]:
    """Returns (bytes beyond q, k, v, their gradients and the output's; bytes of the whole process)."""
    for x in qkv:
        x.grad = None
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(name, qkv, gradient)
        torch.cuda.synchronize()
        highest = torch.cuda.max_memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the highest so far becomes the present
        before = resident("VmRSS")
        step(name, qkv, gradient)
        highest = resident("VmHWM")
    return highest - before - sum(x.grad.nbytes for x in qkv), highest


def decoding(positions: list[int], heads: int, width: int, rounds: Iterable) -> dict[str, dict]:
    """Returns {name: {tokens before: (seconds of every step after them, bytes of the state)}}."""
    linear = partial(linear_attention, causal=True, normalize=True, return_state=True)

    def softmax(q, k, v, state):
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, (k, v), strict=True))
        return F.scaled_dot_product_attention(q, k, v)

    def random(length):
        return [torch.rand(1, heads, length, width, device=DEVICE) for _ in range(3)]

    found, steps, token = {"chunk": {}, "softmax": {}}, [], random(1)
    for n in positions:
        q, k, v = random(n)
        for name, function, state in (("chunk", linear, linear(q, k, v)[1]), ("softmax", softmax, (k, v))):
            found[name][n] = [], sum(x.nbytes for x in state)
            steps.append((partial(function, *token, state=state), found[name][n][0]))
    for _ in rounds:
        for function, spent in steps:
            # The first steps find the caches as another contender left them.
            now = [seconds(function) for _ in range(COUNTED_STEPS + 10)]
            spent += now[10:]
    return found


def exponent(lengths: list[int], values: list[float]) -> float:
    """Returns the slope of log value over log length, by least squares; nan where a value is not above 0."""
    if min(values) <= 0:  # memory of tiny inputs: what earlier steps left free
        return math.nan
    return statistics.linear_regression(*([math.log(a) for a in row] for row in (lengths, values))).slope
