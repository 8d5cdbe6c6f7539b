"""Linear attention and every encoding on a GPU, compared with float64: ``pytest -m gpu``.

Both sides have the same inputs and parameters, which are rounded to the data type that is tested. Errors are
relative to the largest value.
"""

import copy
import os
from importlib import import_module
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch
from support.linear_results import random_inputs, results
from support.tensors import randn, with_gradients

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.ops.linear.fla import missing_requirement

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
if torch.cuda.is_available():
    # Triton's kernels then multiply float32 without TF32. They read the variable when they are compiled.
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")


@pytest.fixture(autouse=True, scope="module")
def two_configurations():
    """Tries two configurations of each kernel; compiling up to 48 for each shape would take minutes."""
    if not find_spec("triton"):
        yield
        return
    autotuner = import_module("triton.runtime.autotuner").Autotuner
    prune = autotuner.prune_configs

    def two(*args):
        return sorted(prune(*args), key=lambda config: abs(config.num_warps - 4))[:2]

    with patch.object(autotuner, "prune_configs", two):
        yield


HALF = {torch.float16: 2**-9, torch.bfloat16: 2**-6}
"""Bounds of errors that are due to rounding gradients of q, k and v to half precision."""


def check(ours, exact, bound):
    for x, y in zip(ours, exact, strict=True):
        assert (x.cpu().double() - y.cpu()).abs().max() <= bound * y.abs().max()  # false for NaN


@pytest.mark.parametrize("backend", ["chunk", "fla", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("queries, keys, d, dv, normalize, decay, state, bound", [
    (70, 70, 64, 64, True, None, False, 1e-4),
    (1000, 1000, 64, 64, True, "learned", False, 1e-4),
    (200, 200, 64, 64, False, "learned", False, 1e-4),
    (200, 200, 64, 64, False, "features", False, 1e-4),
    (1, 1, 16, 16, True, None, True, 2**-9),
    (1000, 1000, 128, 64, False, None, True, 2**-9),
    (70, 70, 24, 17, True, "fixed", True, 2**-9),
    (300, 300, 64, 64, True, "strong", True, 2**-9),
    (1000, 1000, 128, 64, False, "learned", True, 2**-9),
    (300, 410, 64, 64, True, "learned", True, 2**-9),
    (300, 410, 64, 64, True, "features", True, 2**-9),
    (70, 70, 24, 17, False, "features", True, 2**-9),
])  # fmt: skip
def test_linear_attention(backend, dtype, queries, keys, d, dv, normalize, decay, state, bound):
    if backend != "chunk" and (missing := missing_requirement(torch.device(DEVICE), backend)):
        pytest.skip(f"needs {missing}")
    inputs = random_inputs(queries, keys, d, dv, state=state)
    inputs = {name: x.to(dtype if name in "qkv" else torch.float32) for name, x in inputs.items()}
    options = {"causal": True, "normalize": normalize}
    if decay == "features":
        inputs["log_decay"] = -torch.linspace(0.001, 0.5, 2 * d).view(2, d)
    elif decay == "learned":
        inputs["log_decay"] = torch.tensor([-0.01, -0.1])
    elif decay:
        options["log_decay"] = torch.tensor({"fixed": [-0.01, -0.1], "strong": [-5.0, -2.5]}[decay])
    ours = results({name: x.to(DEVICE) for name, x in inputs.items()}, backend=backend, **options)
    exact = {name: x.double() for name, x in inputs.items()}
    check(ours, results(exact, backend="reference", **options), HALF.get(dtype, bound))


def attentions():
    modules = [(SoftmaxAttention, name) for name in ENCODINGS]
    return modules + [(LinearAttention, name) for name in ENCODINGS if ENCODINGS[name].decomposable]


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-4), (torch.bfloat16, 2**-4)], ids=str)
@pytest.mark.parametrize(("cls", "encoding"), attentions())
def test_encodings(cls, encoding, dtype, bound):
    # The denominators of "content" do not change their sign, so that rounding has a small effect.
    options = {"linear_norm": "content"} if cls is LinearAttention else {}
    module = cls(256, 4, encoding, causal=True, layers=2, **options).to(dtype)
    module.eval()  # in training, SPE draws new noise
    x = randn(2, 100, 256).to(dtype)

    def trained(module, x):
        x = x.requires_grad_()
        out, *gradients = with_gradients(module(x), [x, *module.parameters()])
        return out, torch.cat([gradient.flatten() for gradient in gradients])

    exact = trained(copy.deepcopy(module).double(), x.double())
    check(trained(module.to(DEVICE), x.to(DEVICE)), exact, bound)
