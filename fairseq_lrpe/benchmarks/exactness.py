"""Compares linear attention and every encoding on a device with reference results. Requires only torch.

A case is a function without arguments that makes one comparison and returns a row of the report's table.
"""

import copy
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.encodings import ENCODINGS, Encoding, build_encoding, encoding_options
from fairseq_lrpe.methods import METHODS, Method
from fairseq_lrpe.ops import linear_attention

LENGTHS = (70, 1000)
HEADS, WIDTH = 8, 64
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2**-6, torch.bfloat16: 2**-4}
"""Bounds of the relative errors of linear attention. In half precision, the largest errors are those of the
gradient of a decay, a difference of rounded gradients: 0.010 in float16 and 0.027 in bfloat16 with the chunk
form on a CPU."""
IEEE = {"TRITON_F32_DEFAULT": "ieee"}
"""Environment variable with which Triton's kernels multiply float32 without TF32."""

ENCODING_BOUND = 1e-5
"""Bound of the relative errors of encodings."""


def relative_error(ours: Tensor, exact: Tensor) -> float:
    """Returns the largest absolute difference, divided by the largest absolute value of ``exact``."""
    difference = (ours.to("cpu", torch.float64) - exact.to("cpu", torch.float64)).abs().max()
    return (difference / exact.abs().max().cpu().clamp(min=1e-30)).item()


def linear_attention_cases(backend: str, dtype: torch.dtype, device: str) -> list[Callable[[], dict]]:
    """Returns the cases that compare a backend with the definition in float64 on the same device.

    Both have the same inputs, which are rounded to ``dtype``.
    """
    choices = product(LENGTHS, (False, True), (False, True))
    return [partial(_compare_backend, backend, dtype, device, *choice) for choice in choices]


def _compare_backend(backend, dtype, device, length, normalize, has_decay):
    g = torch.Generator().manual_seed(0)
    shape = 2, HEADS, length, WIDTH
    tensors = [torch.rand(shape, generator=g) for _ in "qk"]  # positive, like the output of a feature map
    tensors += [torch.randn(shape, generator=g) for _ in ("v", "gradient")]
    tensors = [x.to(dtype) for x in tensors]

    def results(backend, dtype):
        q, k, v, gradient = (x.to(device, dtype) for x in tensors)
        decay = torch.linspace(-0.1, -0.001, HEADS, dtype=torch.float64).to(device) if has_decay else None
        leaves = [x.requires_grad_() for x in (q, k, v, decay) if x is not None]
        options = {"normalize": normalize, "log_decay": decay, "backend": backend}
        out = linear_attention(q, k, v, causal=True, **options)
        return out.detach(), *torch.autograd.grad(out, leaves, gradient.to(out.dtype))

    pairs = zip(results(backend, dtype), results("reference", torch.float64), strict=True)
    output, *gradients = (relative_error(ours, exact) for ours, exact in pairs)
    name = f"{backend} {str(dtype).removeprefix('torch.')}"
    return {
        "computed by": name,
        "length": length,
        "normalize": "yes" if normalize else "no",
        "log_decay": "yes" if has_decay else "no",
        "error of the output": output,
        "error of the gradients": largest(gradients),
        "bound": BOUNDS[dtype],
    }


def largest(errors: list[float]) -> float:
    """Returns the largest error, or nan if one of the errors is nan."""
    return torch.tensor(errors, dtype=torch.float64).max().item()


def encoding_cases(device: str) -> list[Callable[[], dict]]:
    """Returns the cases that compare each encoding on the device and on the CPU, in float32.

    Each encoding is tested with its default options and with those of every method.
    """
    cases = dict.fromkeys((name, ()) for name in ENCODINGS)
    cases |= {(method.encoding, tuple(method_options(method).items())): None for method in METHODS.values()}
    return [partial(_compare_encoding, name, dict(options), device) for name, options in cases]


def method_options(method: Method) -> dict[str, object]:
    """Returns {option of the method's encoding: value} of the options that differ from their defaults."""
    defaults = encoding_options(ENCODINGS[method.encoding])
    flags = {key.removeprefix(f"{method.encoding}_"): value for key, value in method.flags.items()}
    return {key: value for key, value in flags.items() if key in defaults and value != defaults[key]}


def _compare_encoding(name, options, device):
    torch.manual_seed(0)
    sizes = {"num_heads": HEADS, "head_dim": WIDTH, "causal": True}
    encoding = build_encoding(name, **sizes, **options).eval()  # in training mode, SPE draws new noise
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(2, HEADS, 300, WIDTH, generator=g) for _ in range(3))
    with torch.no_grad():
        exact = _outputs(encoding, q, k, v)
        ours = _outputs(copy.deepcopy(encoding).to(device), *(x.to(device) for x in (q, k, v)))
    errors = [relative_error(x, y) for x, y in zip(ours, exact, strict=True)]
    texts = (key if value is True else f"{key} = {value}" for key, value in options.items())
    return {
        "encoding": name,
        "options": ", ".join(texts) or "defaults",
        "error": largest(errors),
        "bound": ENCODING_BOUND,
    }


def _outputs(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Returns all tensors that an encoding provides to attention, with offsets of 0 and of 100 positions."""
    outputs = [*encoding(q, k, 100, 100), encoding.encode_values(v, 100), encoding.decode_output(v, 100)]
    q, k = encoding(q, k)
    features = None
    if encoding.left_context is not None:
        inputs = F.pad(v.transpose(1, 2).flatten(2), (0, 0, encoding.left_context, 0))
        features = encoding.input_features(inputs)
    scores = encoding.score_function(q, k, input_features=features)
    outputs += [encoding.log_decay, encoding.bias(q, k) if scores is None else scores(q, k)]
    if encoding.needs_weights:
        outputs.append(encoding.output_from_weights((q @ k.mT).softmax(-1)))
    return [x for x in outputs if x is not None]
