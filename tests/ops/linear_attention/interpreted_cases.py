"""Compares the fla backend with the definition on the CPU, where Triton interprets the kernels.

``test_interpreter.py`` runs these tests in a process of their own with TRITON_INTERPRET=1, which Triton reads
when it is imported.
"""

import copy
import os
from importlib import import_module

import pytest
import torch
from tensors import randn
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.models import argument_validation
from fairseq_lrpe.ops import linear_attention

FLA = import_module("fairseq_lrpe.ops.linear_attention.fla")

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
        monkeypatch.setattr(module, "fla_missing_requirement", lambda device: None)
    return names


def assert_close(ours, exact, bound=BOUND):
    """Asserts that two dicts of tensors agree up to a bound relative to the largest value of each tensor."""
    assert ours.keys() == exact.keys()
    for name in exact:
        difference = (ours[name].double() - exact[name]).abs().max() / exact[name].abs().max()
        assert difference <= bound, f"{name}: {difference:.1e}"  # false for NaN


def weighted_sum(x):
    return (x.double() * torch.linspace(-1, 2, x.size(-1), dtype=torch.float64)).sum()


def results(backend, leaves, dtype=None, **options):
    """Returns the output, the new state and all gradients of linear attention, each with its name.

    Args:
        backend: the backend; "reference" computes in float64 and others in float32.
        leaves: float64 tensors by name; "kv" and "k_sum" are the initial state.
        dtype: dtype of q, k and v, by default that of the computation.
        **options: options of ``linear_attention``.
    """
    sums = torch.float64 if backend == "reference" else torch.float32
    dtypes = dict.fromkeys("qkv", dtype or sums)
    x = {name: y.detach().to(dtypes.get(name, sums)) for name, y in leaves.items()}
    x = {name: y.requires_grad_(leaves[name].requires_grad) for name, y in x.items()}
    state = (x["kv"], x["k_sum"]) if "kv" in x else None
    options = {"log_decay": x.get("log_decay"), "state": state, "return_state": True, **options}
    out, new = linear_attention(x["q"], x["k"], x["v"], backend=backend, **options)
    found = {"output": out, "new kv": new.kv, "new k_sum": new.k_sum}
    trained = [name for name, y in x.items() if y.requires_grad]
    gradients = torch.autograd.grad(sum(map(weighted_sum, found.values())), [x[name] for name in trained])
    return found | {f"gradient of {name}": y for name, y in zip(trained, gradients, strict=True)}


def inputs(batch, queries, keys, d, dv, with_state, dtype=torch.float64):
    """Returns random positive tensors, for which no denominator is small, with values of ``dtype``."""
    shapes = {"q": (queries, d), "k": (keys, d), "v": (keys, dv)}
    if with_state:
        shapes |= {"kv": (d, dv), "k_sum": (d,)}
    g = torch.Generator().manual_seed(0)
    draw = {name: torch.rand(batch, 2, *shape, generator=g) for name, shape in shapes.items()}
    return {name: x.to(dtype).double().requires_grad_() for name, x in draw.items()}


DECAYS = {
    "none": lambda d: None,
    "weak": lambda d: torch.tensor([-0.3, -0.01]),
    "strong": lambda d: torch.tensor([-1.5, -3.0]),
    "feature": lambda d: -torch.linspace(0.001, 0.5, 2 * d).view(2, d),
    "strong-feature": lambda d: -torch.linspace(0.001, 4.0, d).view(1, d),
}


def with_decay(leaves, make, learned):
    log_decay = make(leaves["q"].size(-1))
    return leaves if log_decay is None else leaves | {"log_decay": log_decay.requires_grad_(learned)}


OPS = [  # decay, learned, (batch, length, d, dv), normalize, with an initial state
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
]


@pytest.mark.parametrize("decay, learned, shape, normalize, with_state", OPS)
def test_op(decay, learned, shape, normalize, with_state, launched):
    batch, length, d, dv = shape
    leaves = with_decay(inputs(batch, length, length, d, dv, with_state), DECAYS[decay], learned)
    options = {"causal": True, "normalize": normalize}
    assert_close(results("fla", leaves, **options), results("reference", leaves, **options))
    per_feature = "log_decay" in leaves and leaves["log_decay"].dim() > 1
    assert any("gla" in name for name in launched) == per_feature


@pytest.mark.parametrize("learned", [False, True])
def test_one_decay_for_several_heads(learned):
    """With d = 1, a decay of shape (1, d) is the same number for all heads."""
    leaves = with_decay(inputs(1, 5, 5, 1, 3, False), lambda d: torch.tensor([[-0.3]]), learned)
    options = {"causal": True, "normalize": False}
    assert_close(results("fla", leaves, **options), results("reference", leaves, **options))


@pytest.mark.parametrize("decay, with_state", [("none", True), ("weak", False), ("feature", True)])
def test_padding(decay, with_state):
    """The first sequence has padding at its end; the second at its beginning, where denominators are 0."""
    leaves = with_decay(inputs(2, 20, 20, 16, 24, with_state), DECAYS[decay], False)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, 15:] = mask[1, :6] = True
    options = {"causal": True, "normalize": True, "key_padding_mask": mask}
    assert_close(results("fla", leaves, **options), results("reference", leaves, **options))


@pytest.mark.parametrize("queries, keys, decay", [
    (1, 1, "strong"),
    (1, 9, "feature"),
    (5, 30, "none"),
    (20, 31, "weak"),
    (20, 31, "feature"),
])  # fmt: skip
def test_earlier_keys(queries, keys, decay):
    leaves = with_decay(inputs(2, queries, keys, 17, 16, True), DECAYS[decay], True)
    options = {"causal": True, "normalize": True}
    assert_close(results("fla", leaves, **options), results("reference", leaves, **options))


def test_bidirectional():
    leaves, options = inputs(2, 21, 30, 17, 16, True), {"causal": False, "normalize": True}
    assert_close(results("fla", leaves, **options), results("reference", leaves, **options))


@pytest.mark.parametrize("decay, dtype", [
    ("none", torch.float16),
    ("weak", torch.bfloat16),
    ("feature", torch.float16),
    ("strong-feature", torch.bfloat16),
])  # fmt: skip
def test_half_precision(decay, dtype):
    """Everything is computed in float32; only the gradients of q, k and v are rounded to their dtype."""
    leaves = with_decay(inputs(1, 20, 20, 16, 20, True, dtype), DECAYS[decay], decay != "strong-feature")
    options = {"causal": True, "normalize": True}
    ours = results("fla", leaves, dtype=dtype, **options)
    exact = results("reference", leaves, **options)
    rounded = {f"gradient of {name}" for name in ("q", "k", "v")}
    assert {name for name, x in ours.items() if x.dtype == dtype} == rounded
    for names, bound in ((rounded, torch.finfo(dtype).eps), (ours.keys() - rounded, BOUND)):
        assert_close({name: ours[name] for name in names}, {name: exact[name] for name in names}, bound)


def test_float64_is_not_supported():
    x = torch.rand(1, 2, 5, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"does not support float64 .*: use backend 'chunk'$"):
        linear_attention(x, x, x, causal=True, normalize=True, backend="fla")


@pytest.mark.parametrize("decay", ["none", "weak", "feature"])
def test_auto_selects_the_kernels(decay, launched):
    q, k, v = (torch.rand(1, 2, 5, 4) for _ in range(3))
    options = {"causal": True, "normalize": True, "log_decay": DECAYS[decay](4)}
    linear_attention(q.double(), k, v, **options)
    assert not launched
    linear_attention(q, k, v, **options)
    assert launched


ENCODINGS = [  # (encoding, linear norm); the layer is the second of four, in which all of them decay
    ("none", "denominator"),
    ("rope", "content"),
    ("roper", "denominator"),
    ("per", "denominator"),
    ("lrpe_decay", "layernorm"),
    ("xpos", "layernorm"),
]


def attention(name, norm):
    """Returns linear attention that trains with the kernels, and a copy with the definition in float64."""
    sizes = {"num_heads": 2, "head_dim": 12, "causal": True, "layer": 2, "layers": 4}
    ours = LinearAttention(24, 2, build_encoding(name, **sizes), linear_norm=norm, backend="fla")
    exact = copy.deepcopy(ours).double()
    exact.backend = "reference"
    return ours, exact


def trained(module, inputs, run):
    """Returns the output of ``run`` and the gradients of the inputs and of all parameters."""
    dtype = next(module.parameters()).dtype
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    out = run(module, *leaves)
    named = {f"input {i}": x for i, x in enumerate(leaves)} | dict(module.named_parameters())
    gradients = torch.autograd.grad(weighted_sum(out), list(named.values()))
    return {"output": out} | dict(zip(named, gradients, strict=True))


@pytest.mark.parametrize("name, norm", ENCODINGS)
def test_module(name, norm, launched):
    """Training with padding, with a memory of inputs, and with one of the sums of a preceding segment."""
    ours, exact = attention(name, norm)
    mask = torch.zeros(2, 18, dtype=torch.bool)
    mask[0, 15:] = True

    def run(module, x, memory):
        first, state = module(memory, return_state=True)
        after = module(x, state=module.restart_positions(state))
        outputs = module(x, key_padding_mask=mask), module(x, memory=memory), after, first
        return torch.cat(outputs, dim=1)

    x = randn(2, 18, 24), randn(2, 7, 24, seed=1)
    assert_close(trained(ours, x, run), trained(exact, x, run))
    assert launched


@pytest.mark.parametrize("name, norm", ENCODINGS)
@torch.no_grad()
def test_decoding_after_a_prompt(name, norm):
    ours, exact = attention(name, norm)
    x, state, outputs = randn(2, 24, 24), None, []
    for part in x.split([18, 1, 1, 4], dim=1):
        out, state = ours.eval()(part.float(), state=state, return_state=True)
        outputs.append(out)
    assert_close({"output": torch.cat(outputs, dim=1)}, {"output": exact.eval()(x)})
