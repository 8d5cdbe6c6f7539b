"""Compares the fla backend with the definition on the CPU, where Triton interprets the kernels.

``test_interpreter.py`` runs these tests in a process of their own with TRITON_INTERPRET=1, which Triton reads
when it is imported.
"""

import copy
import os
from importlib import import_module

import pytest
import torch
import triton
from support.linear_results import positive, random_inputs, results
from support.pairwise_scores import in_parts
from support.tensors import randn, with_gradients
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.models import argument_validation
from fairseq_lrpe.ops import linear_attention

FLA = import_module("fairseq_lrpe.ops.linear.fla")

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_interpreter.py, which sets TRITON_INTERPRET=1"

BOUND = 1e-4
"""Bound of the errors in float32, relative to the largest value; the largest error measured is 8e-6."""


class Index(int):
    """An int with the method ``to``, which kernels call for the index of a loop."""

    def to(self, dtype):
        return self


# The interpreter adds the names of its module to those that a kernel knows.
interpreter.range = lambda *bounds: map(Index, range(*bounds))


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Lets the backend run on the CPU, and returns the list of the kernels that it launches."""
    names = []

    def run(self, *args, **kwargs):  # tuning the configurations needs a GPU; this takes the first
        names.append(self.base_fn.__name__)
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    monkeypatch.setattr(Autotuner, "run", run)
    for module in (FLA, argument_validation):
        monkeypatch.setattr(module, "missing_requirement", lambda device, backend="fla": None)
    return names


def assert_close(ours, exact):
    for x, y in zip(ours, exact, strict=True):
        bound = BOUND if x.dtype == torch.float32 else torch.finfo(x.dtype).eps
        assert (x.double() - y).abs().max() <= bound * y.abs().max()  # false for NaN


DECAYS = {
    "none": lambda d: None,
    "weak": lambda d: torch.tensor([-0.3, -0.01]),
    "strong": lambda d: torch.tensor([-1.5, -3.0]),
    "feature": lambda d: -torch.linspace(0.001, 0.5, 2 * d).view(2, d),
    "strong-feature": lambda d: -torch.linspace(0.001, 4.0, d).view(1, d),
    "gates": lambda d, *shape: -positive(*shape).float(),
    "feature-gates": lambda d, *shape: -positive(*shape, d).float(),
}


def check(inputs, decay="none", learned=False, dtype=torch.float32, causal=True, normalize=True, **options):
    """Compares outputs, new state and gradients with those of the definition in float64.

    Everything is computed in float32; only the gradients of q, k and v have their ``dtype``.
    """
    inputs = inputs | {"v": positive(*inputs["v"].shape, seed=3)}
    half = {name: x.to(dtype if name in "qkv" else torch.float32) for name, x in inputs.items()}
    shape = inputs["k"].shape[:3] if "gates" in decay else ()
    log_decay = DECAYS[decay](inputs["q"].size(-1), *shape)
    options |= {"causal": causal, "normalize": normalize}
    if learned:
        half["log_decay"] = log_decay
    else:
        options["log_decay"] = log_decay
    ours = results(half, backend="fla", **options)
    exact = {name: x.double() for name, x in half.items()}
    assert_close(ours, results(exact, backend="reference", **options))
    assert [x.dtype for x in ours[:6]] == [torch.float32] * 3 + [dtype] * 3


@pytest.mark.parametrize("decay, learned, shape, normalize, with_state", [
    ("none", False, (2, 2, 16, 16), True, True),
    ("none", False, (1, 130, 16, 16), True, False),
    ("weak", False, (2, 17, 20, 9), True, False),
    ("weak", True, (1, 70, 33, 17), True, True),
    ("strong", False, (1, 30, 15, 16), False, True),
    ("strong", True, (1, 130, 16, 16), True, False),
    ("feature", False, (1, 19, 24, 33), False, False),
    ("feature", True, (1, 70, 33, 17), True, True),
    ("strong-feature", False, (2, 2, 16, 16), True, True),
    ("strong-feature", True, (1, 130, 16, 16), True, False),
    ("gates", True, (2, 70, 33, 17), True, True),
    ("feature-gates", True, (2, 70, 17, 16), True, True),
])  # fmt: skip
def test_op(decay, learned, shape, normalize, with_state, launched):
    batch, length, d, dv = shape
    inputs = random_inputs(length, length, d, dv, batch, state=with_state)
    check(inputs, decay, learned, normalize=normalize)
    assert any("gla" in name for name in launched) == ("feature" in decay)


@pytest.mark.parametrize("learned", [False, True])
def test_one_decay_for_several_heads(learned, monkeypatch):
    monkeypatch.setitem(DECAYS, "one", lambda d: torch.tensor([[-0.3]]))
    check(random_inputs(5, 5, 1, 3, batch=1), "one", learned, normalize=False)


@pytest.mark.parametrize("decay, with_state", [
    ("none", True),
    ("weak", False),
    ("feature", True),
    ("gates", True),
])  # fmt: skip
def test_padding(decay, with_state):
    """The first sequence has padding at its end; the second at its beginning, where denominators are 0."""
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, 15:] = mask[1, :6] = True
    check(random_inputs(20, 20, 16, 24, state=with_state), decay, key_padding_mask=mask)


@pytest.mark.parametrize("queries, keys, decay", [
    (1, 1, "strong"),
    (1, 9, "feature"),
    (5, 30, "none"),
    (20, 31, "weak"),
    (20, 31, "feature"),
    (5, 9, "feature-gates"),
])  # fmt: skip
def test_earlier_keys(queries, keys, decay):
    check(random_inputs(queries, keys, 17, 16, state=True), decay, learned=decay != "none")


def test_bidirectional():
    check(random_inputs(21, 30, 17, 16, state=True), causal=False)


@pytest.mark.parametrize("decay, dtype", [
    ("none", torch.float16),
    ("weak", torch.bfloat16),
    ("feature", torch.float16),
    ("strong-feature", torch.bfloat16),
])  # fmt: skip
def test_half_precision(decay, dtype):
    inputs = random_inputs(20, 20, 16, 20, batch=1, state=True)
    check(inputs, decay, learned=decay in ("weak", "feature"), dtype=dtype)


def test_float64_is_not_supported():
    x = torch.rand(1, 2, 5, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"does not support float64 for q, k or v: use backend 'chunk'$"):
        linear_attention(x, x, x, causal=True, normalize=True, backend="fla")


@pytest.mark.parametrize("decay", ["none", "weak", "feature"])
def test_auto_selects_the_kernels(decay, launched):
    q, k, v = (torch.rand(1, 2, 5, 16) for _ in range(3))
    options = {"causal": True, "normalize": True, "log_decay": DECAYS[decay](16)}
    linear_attention(q.double(), k, v, **options)
    assert not launched
    linear_attention(q, k, v, **options)
    assert launched


@pytest.mark.parametrize("d, dv", [(15, 16), (16, 1)])
def test_narrow_features_with_decays(d, dv, launched):
    check(random_inputs(5, 5, d, dv), "feature", learned=True)
    assert not launched


@pytest.mark.parametrize("capability, version, works", [
    ((8, 0), "3.6.0", True),
    ((9, 0), "3.3.1", True),
    ((9, 0), "3.4.0", False),
    ((9, 0), "3.7.0", False),
    ((9, 0), "3.10.0", True),
    ((10, 0), "3.6.0", True),
])  # fmt: skip
def test_gates_on_hopper_gpus(capability, version, works, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(triton, "__version__", version)
    assert FLA._gates_have_wrong_gradients.__wrapped__(torch.device("cuda")) != works


@pytest.mark.parametrize("decay, learned, uses_kernels", [
    ("none", False, True),
    ("weak", False, True),
    ("weak", True, False),
    ("gates", True, False),
    ("feature", True, True),
])  # fmt: skip
def test_wrong_gradients_of_gates(decay, learned, uses_kernels, launched, monkeypatch):
    monkeypatch.setattr(FLA, "_gates_have_wrong_gradients", lambda device: True)
    check(random_inputs(5, 5, 16, 16), decay, learned)
    assert bool(launched) == uses_kernels


@pytest.mark.parametrize("name, norm", [
    ("none", "denominator"),
    ("rope", "content"),
    ("roper", "denominator"),
    ("per", "denominator"),
    ("lrpe_decay", "layernorm"),
    ("xpos", "layernorm"),
    ("fox_rope", "denominator"),
    ("gla", "layernorm"),
])  # fmt: skip
def test_module(name, norm, launched):
    """Training with padding, with a memory of inputs and of sums, and decoding after a prompt.

    The layer is the second of four, in which all of these encodings decay.
    """
    ours = LinearAttention(32, 2, name, causal=True, layer=2, layers=4, linear_norm=norm, backend="fla")
    exact = copy.deepcopy(ours).double()
    exact.backend = "reference"
    mask = torch.zeros(2, 18, dtype=torch.bool)
    mask[0, 15:] = True

    def trained(module, dtype):
        x, memory = (x.to(dtype).requires_grad_() for x in (randn(2, 18, 32), randn(2, 7, 32, seed=1)))
        first, state = module(memory, return_state=True)
        after = module(x, state=module.restart_positions(state))
        outputs = module(x, key_padding_mask=mask), module(x, memory=memory), after, first
        return with_gradients(torch.cat(outputs, dim=1), [x, memory, *module.parameters()])

    assert_close(trained(ours, torch.float32), trained(exact, torch.float64))
    assert launched
    x = randn(2, 24, 32)
    with torch.no_grad():
        steps, _ = in_parts(ours.eval(), x.float(), [18, 1, 1, 4])
        assert_close([steps], [exact.eval()(x)])
