"""Compares what a device computes with what it should: linear attention and every encoding.

Each case is a call without arguments that returns a row of a report. Needs torch alone.
"""

import copy
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.encodings import ENCODINGS, Encoding, build_encoding, encoding_options
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.ops import linear_attention

LENGTHS = (70, 1000)
HEADS, WIDTH = 8, 64
BOUNDS = {"chunk float64": 1e-10, "chunk float32": 1e-4, "fla float32": 2**-8}
"""Of errors relative to the greatest number. fla's kernels multiply in TF32: to cut every factor of the
definition to its 10 bits gave errors up to 2^-9 on these inputs."""

ENCODING_BOUND = 1e-5


def relative_error(ours: Tensor, exact: Tensor) -> float:
    """Returns the greatest difference over the greatest number of ``exact``."""
    difference = (ours.to("cpu", torch.float64) - exact.to("cpu", torch.float64)).abs().max()
    return (difference / exact.abs().max().cpu().clamp(min=1e-30)).item()


def linear_attention_cases(backend: str, dtype: torch.dtype, device: str) -> list[Callable[[], dict]]:
    """Returns the comparisons of a backend with the definition in float64, both on the device."""
    choices = product(LENGTHS, (False, True), (False, True))
    return [partial(_compare_backend, backend, dtype, device, *choice) for choice in choices]


def _compare_backend(backend, dtype, device, length, normalize, decays):
    g = torch.Generator().manual_seed(0)
    shape = 2, HEADS, length, WIDTH
    drawn = [torch.rand(shape, generator=g) for _ in "qk"]  # positive, as behind a feature map
    drawn += [torch.randn(shape, generator=g) for _ in ("v", "gradient")]
    learned = decays and backend != "fla"  # fla has no gradient for a decay

    def results(backend, dtype):
        q, k, v, gradient = (x.to(device, dtype) for x in drawn)
        decay = torch.linspace(-0.1, -0.001, HEADS).to(device, dtype) if decays else None
        leaves = [x.requires_grad_() for x in ((q, k, v, decay) if learned else (q, k, v))]
        how = {"normalize": normalize, "log_decay": decay, "backend": backend}
        out = linear_attention(q, k, v, causal=True, **how)
        return out.detach(), *torch.autograd.grad(out, leaves, gradient.to(out.dtype))

    pairs = zip(results(backend, dtype), results("reference", torch.float64), strict=True)
    output, *gradients = (relative_error(ours, exact) for ours, exact in pairs)
    way = f"{backend} {str(dtype).removeprefix('torch.')}"
    return {
        "computed by": way,
        "length": length,
        "normalize": "yes" if normalize else "no",
        "log_decay": "yes" if decays else "no",
        "error of the output": output,
        "error of the gradients": greatest(gradients),
        "bound": BOUNDS[way],
    }


def greatest(errors: list[float]) -> float:
    """Returns the greatest error, or nan, which is within no bound, where one is nan."""
    return torch.tensor(errors, dtype=torch.float64).max().item()


def encoding_cases(device: str) -> list[Callable[[], dict]]:
    """Returns the comparisons of every encoding on the device with itself on the CPU, in float32.

    It is built with its defaults, and as each of the methods has it.
    """
    chosen = dict.fromkeys((name, ()) for name in ENCODINGS)
    for method in METHODS.values():
        options = encoding_options(ENCODINGS[method.encoding])
        given = {key.removeprefix(f"{method.encoding}_"): value for key, value in method.flags.items()}
        differs = ((key, value) for key, value in given.items() if key in options and value != options[key])
        chosen[method.encoding, tuple(differs)] = None
    return [partial(_compare_encoding, name, dict(options), device) for name, options in chosen]


def _compare_encoding(name, options, device):
    torch.manual_seed(0)
    shared = {"num_heads": HEADS, "head_dim": WIDTH, "causal": True}
    encoding = build_encoding(name, **shared, **options).eval()  # SPE then draws no noise
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(2, HEADS, 300, WIDTH, generator=g) for _ in range(3))
    with torch.no_grad():
        exact = _encoded(encoding, q, k, v)
        ours = _encoded(copy.deepcopy(encoding).to(device), *(x.to(device) for x in (q, k, v)))
    errors = [relative_error(x, y) for x, y in zip(ours, exact, strict=True)]
    said = ", ".join(key if value is True else f"{key} = {value}" for key, value in options.items())
    return {
        "encoding": name,
        "options": said or "defaults",
        "error": greatest(errors),
        "bound": ENCODING_BOUND,
    }


def _encoded(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """All that an encoding gives attention, with queries and keys that stand at 100 and later."""
    found = [*encoding(q, k, 100, 100), encoding.encode_values(v, 100), encoding.decode_output(v, 100)]
    q, k = encoding(q, k)
    steps = None
    if encoding.looks_back is not None:
        inputs = F.pad(v.permute(2, 0, 1, 3).flatten(2), (0, 0, 0, 0, encoding.looks_back, 0))
        steps = encoding.steps(inputs)
    scores = encoding.scores_in_parts(q, k, steps=steps)
    found += [encoding.log_decay, encoding.bias(q, k) if scores is None else scores(q, k)]
    if encoding.needs_weights:
        found.append(encoding.values_from_weights((q @ k.mT).softmax(-1)))
    return [x for x in found if x is not None]
