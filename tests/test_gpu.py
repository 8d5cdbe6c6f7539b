"""Linear attention and every encoding on a GPU, compared with float64: ``pytest -m gpu``.

Both sides have the same inputs and parameters, which are rounded to the data type that is tested. Errors are
relative to the largest value.
"""

import copy
import os

import pytest
import torch

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.linear_attention.fla import fla_missing_requirement

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
if torch.cuda.is_available():
    # Triton's kernels then multiply float32 without TF32. They read the variable when they are compiled.
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")

ERRORS = {torch.float32: 1e-4, torch.bfloat16: 2**-4}
HEADS, WIDTH = 4, 64
every_dtype = pytest.mark.parametrize("dtype", ERRORS, ids=str)


def check(ours, exact, dtype):
    """Asserts that the tensors have the same values, except for an error relative to the largest of them."""
    assert all(x.isfinite().all() for x in ours)
    largest = max(x.abs().max().item() for x in exact)
    errors = [(x.cpu().double() - y.cpu()).abs().max().item() for x, y in zip(ours, exact, strict=True)]
    assert max(errors) < ERRORS[dtype] * largest


@every_dtype
@pytest.mark.parametrize("backend", ["chunk", "fla"])
@pytest.mark.parametrize(
    ("length", "normalize", "decays"),
    [
        (70, True, None),
        (1000, False, None),
        (1000, True, None),
        (1000, True, "heads"),
        (200, False, "heads"),
        (200, False, "features"),  # whose definition needs memory for 2 × 4 × 200 × 200 × 64 numbers
    ],
)
def test_linear_attention(backend, dtype, length, normalize, decays):
    if backend == "fla" and (missing := fla_missing_requirement(torch.device(DEVICE))):
        pytest.skip(f"needs {missing}")
    q, k = torch.rand(2, 2, HEADS, length, WIDTH).to(dtype)  # positive, like outputs of a feature map
    v, gradient = torch.randn(2, 2, HEADS, length, WIDTH).to(dtype)
    decay = {"heads": (HEADS,), "features": (HEADS, WIDTH)}.get(decays)
    decay = decay and -0.1 * torch.rand(decay)

    def results(device, backend, dtype):
        tensors = [x.to(device, dtype) for x in (q, k, v)]
        tensors += [decay.to(device, torch.float64 if dtype == torch.float64 else None)] if decays else []
        tensors = [x.requires_grad_() for x in tensors]
        options = {"log_decay": tensors[3] if decays else None, "normalize": normalize, "backend": backend}
        out = linear_attention(*tensors[:3], causal=True, **options)
        return out.detach(), *torch.autograd.grad(out, tensors, gradient.to(out))

    ours, exact = results(DEVICE, backend, dtype), results("cpu", "reference", torch.float64)
    for pair in zip(ours, exact, strict=True):
        check(*([x] for x in pair), dtype)


def attentions():
    """Returns (class, encoding) of every encoding, in linear attention, too, if that is possible."""
    modules = [(SoftmaxAttention, name) for name in ENCODINGS]
    return modules + [(LinearAttention, name) for name in ENCODINGS if ENCODINGS[name].decomposable]


@every_dtype
@pytest.mark.parametrize(("cls", "encoding"), attentions())
def test_encodings(cls, encoding, dtype):
    """In causal attention, with the gradients of the inputs and of all parameters."""
    # The denominators of "content" do not change their sign, so that rounding has a small effect.
    options = {"linear_norm": "content"} if cls is LinearAttention else {}
    module = cls(HEADS * WIDTH, HEADS, encoding, causal=True, **options)
    module.eval()  # in training, SPE draws new noise
    x, gradient = torch.randn(2, 2, 100, HEADS * WIDTH).to(dtype)
    module = module.to(dtype)

    def results(module, x):
        x = x.requires_grad_()
        out = module(x)
        parameters = [x, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
        return out.detach(), torch.autograd.grad(out, parameters, gradient.to(out), allow_unused=True)

    exact_out, exact = results(copy.deepcopy(module).double(), x.double())
    out, gradients = results(module.to(DEVICE), x.to(DEVICE))
    check([out], [exact_out], dtype)
    assert [g is None for g in gradients] == [g is None for g in exact]
    check(*([g for g in found if g is not None] for found in (gradients, exact)), dtype)
