"""Compares the triton backend with the definition on the CPU, where Triton interprets the kernel.

``test_interpreter.py`` runs these tests in a process of their own with TRITON_INTERPRET=1, which Triton reads
when it is imported.
"""

import math
import os
from importlib import import_module

import pytest
import torch
from support.linear_results import positive, random_inputs, results
from support.tensors import randn

from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.ops import linear_attention

BACKEND = import_module("fairseq_lrpe.ops.linear.triton_backend")
KERNELS = import_module("fairseq_lrpe.ops.linear.triton_kernels")

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_interpreter.py, which sets TRITON_INTERPRET=1"

BOUND = 1e-4
"""Bound of the errors in float32, relative to the largest value; the largest error measured is 5e-5."""


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Lets the backend run on the CPU with short segments, and returns the list of its grids."""
    grids = []
    attend = KERNELS.attend

    class Recorder:
        def __getitem__(self, grid):
            grids.append(grid)
            return attend[grid]

    monkeypatch.setattr(KERNELS, "attend", Recorder())
    monkeypatch.setattr(BACKEND, "missing_requirement", lambda device, backend: None)
    monkeypatch.setattr(BACKEND, "_MIN_SEGMENT", 32)
    return grids


def assert_close(ours, exact):
    for x, y in zip(ours, exact, strict=True):
        bound = BOUND if x.dtype == torch.float32 else torch.finfo(x.dtype).eps
        assert (x.double() - y).abs().max() <= bound * y.abs().max()  # false for NaN


DECAYS = {
    "none": lambda *shape: None,
    "weak": lambda *shape: torch.tensor([-0.3, -0.01]),
    "strong": lambda *shape: torch.tensor([-20.0, -3.0]),
    "zero": lambda *shape: torch.tensor([-math.inf, -0.5]),
    "feature": lambda *shape: -torch.linspace(0.001, 0.5, 6).view(2, 3),
    "gates": lambda *shape: -positive(*shape).float(),
    "strong gates": lambda *shape: -120 * positive(*shape).float() ** 8,
}


def check(inputs, decay="none", learned=False, dtype=torch.float32, **options):
    """Compares outputs, new state and gradients with those of the definition in float64."""
    half = {name: x.to(dtype if name in "qkv" else torch.float32) for name, x in inputs.items()}
    log_decay = DECAYS[decay](*inputs["k"].shape[:3])
    options = {"causal": True, "normalize": True} | options
    if learned:
        half["log_decay"] = log_decay
    else:
        options["log_decay"] = log_decay
    ours = results(half, backend="triton", **options)
    exact = results({name: x.double() for name, x in half.items()}, backend="reference", **options)
    if decay == "strong" and learned:
        # The gradient of a decay of e^-20 is the difference of terms that are 10^7 times as large. Its error
        # in float32 depends on the machine, and on some exceeds the bound in the form for CPUs, too.
        *ours, gradient = ours
        *exact, expected = exact
        plain = results(half, backend="chunk", **options)[-1]
        error = (gradient.double() - expected).abs().max()
        assert error <= max(BOUND * expected.abs().max(), 4 * (plain.double() - expected).abs().max())
    assert_close(ours, exact)
    assert [x.dtype for x in ours[:6]] == [torch.float32] * 3 + [dtype] * 3


@pytest.mark.parametrize("decay, learned, shape, normalize, with_state", [
    ("none", False, (2, 2, 16, 16), True, True),
    ("none", False, (1, 70, 64, 33), True, False),
    ("weak", False, (2, 17, 20, 9), True, False),
    ("weak", True, (1, 70, 33, 17), True, True),
    ("strong", True, (1, 33, 15, 16), True, False),
    ("zero", False, (1, 70, 3, 4), False, True),
    ("gates", True, (2, 40, 16, 40), True, True),
    ("gates", True, (1, 40, 16, 1), False, False),
    ("strong gates", True, (1, 100, 16, 16), True, True),
])  # fmt: skip
def test_op(decay, learned, shape, normalize, with_state, launched):
    batch, length, d, dv = shape
    inputs = random_inputs(length, length, d, dv, batch, state=with_state)
    check(inputs | {"v": positive(batch, 2, length, dv)}, decay, learned, normalize=normalize)
    segments = [grid[1] for grid in launched]
    parts = max(segments)
    assert (
        segments
        == ([parts - 1] if parts > 1 else []) + [parts] * 2 + ([parts - 1] if parts > 1 else []) + [parts] * 2
    )


def test_one_decay_for_several_heads(monkeypatch):
    monkeypatch.setitem(DECAYS, "one", lambda *shape: torch.tensor([[-0.3]]))
    check(random_inputs(5, 5, 1, 3, batch=1), "one", learned=True, normalize=False)


@pytest.mark.parametrize("decay", ["none", "gates"])
def test_padding_and_earlier_keys(decay):
    """The first sequence has padding at its end; the second at its beginning, where denominators are 0."""
    mask = torch.zeros(2, 40, dtype=torch.bool)
    mask[0, 35:] = mask[1, :12] = True
    check(random_inputs(33, 40, 16, 24, state=True), decay, key_padding_mask=mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    inputs = random_inputs(40, 40, 16, 20, batch=1, state=True)
    check(inputs | {"v": positive(1, 2, 40, 20)}, "weak", learned=dtype == torch.float16, dtype=dtype)


def test_layouts(launched):
    """Heads of a projection (L, B, H·d) are not copied; the results have their layout."""
    rows = [randn(20, 2, 3 * 16, seed=seed).float() for seed in range(3)]
    q, k, v = (x.view(20, 2, 3, 16).permute(1, 2, 0, 3).exp().requires_grad_() for x in rows)
    out = linear_attention(q, k, v, causal=True, normalize=True, backend="triton")
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(x.stride() == v.stride() for x in (out, *gradients))
    columns = [x.detach().mT.contiguous().mT for x in (q, k, v)]  # columns that are not adjacent
    assert_close([linear_attention(*columns, causal=True, normalize=True, backend="triton")], [out.double()])


@pytest.mark.parametrize("inputs, options", [
    (random_inputs(1, 9, 16, 16), {}),
    (random_inputs(21, 30, 17, 16), {"causal": False}),
    (random_inputs(5, 5, 65, 16), {}),
    (random_inputs(5, 5, 16, 16, batch=0), {}),
    (random_inputs(20, 20, 3, 4), {"decay": "feature"}),
])  # fmt: skip
def test_what_the_kernel_does_not_support(inputs, options, launched):
    if inputs["q"].numel():
        check(inputs | {"v": positive(*inputs["v"].shape)}, **options)
    else:
        results(inputs, backend="chunk", causal=True, normalize=True)
    assert not launched


def test_float64_is_not_supported():
    x = torch.rand(1, 2, 5, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"does not support float64 for q, k or v: use backend 'chunk'$"):
        linear_attention(x, x, x, causal=True, normalize=True, backend="triton")


def test_auto_does_not_select_the_kernel(launched):
    x = torch.rand(1, 2, 5, 16)
    linear_attention(x, x, x, causal=True, normalize=True)
    assert not launched


def test_second_derivatives_and_transforms():
    inputs = [torch.rand(1, 2, 20, 4, requires_grad=True) for _ in range(3)]

    def second(backend):
        options = {"causal": True, "normalize": True, "backend": backend}
        gradients = torch.autograd.grad(linear_attention(*inputs, **options).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), inputs)

    for ours, exact in zip(second("triton"), second("reference"), strict=True):
        assert (ours - exact).abs().max() <= 1e-4 * exact.abs().max()
    torch.func.jvp(
        lambda q: linear_attention(q, *inputs[1:], causal=True, normalize=True, backend="triton"),
        (inputs[0].detach(),),
        (torch.ones_like(inputs[0]),),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    """One graph with the eager gradients, for a state and a learned decay, too."""
    inputs = random_inputs(40, 40, 16, 16, state=True) | {"log_decay": DECAYS["weak"]()}
    inputs = {name: x.float() for name, x in inputs.items()} | {"v": positive(2, 2, 40, 16).float()}

    def attend(q, k, v, kv, k_sum, log_decay):
        options = {"causal": True, "normalize": True, "return_state": True, "backend": "triton"}
        out, state = linear_attention(q, k, v, state=(kv, k_sum), log_decay=log_decay, **options)
        return out, *state

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    exact = [x.double() for x in results(inputs, attend)]
    assert_close(results(inputs, compiled), exact)


@pytest.mark.parametrize("encoding, norm", [("rope", "content"), ("fox_rope", "denominator")])
def test_module(encoding, norm, launched):
    module = LinearAttention(32, 2, encoding, causal=True, linear_norm=norm, backend="triton")
    x = randn(2, 18, 32).float().requires_grad_()
    ours = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    assert launched
    module.double().backend = "reference"
    x = x.detach().double().requires_grad_()
    exact = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    assert_close(ours, exact)
