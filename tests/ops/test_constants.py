"""Constants of modules in every mode of torch and after it, and float64 on devices that do not have it."""

import contextlib
import copy
import itertools
import pickle

import pytest
import torch
from support.tensors import assert_same, randn, with_gradients
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_lrpe.attention import LinearAttention, SelfAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, START, Context, Encoding, build_encoding
from fairseq_lrpe.ops.constants import constant, is_tracing
from fairseq_lrpe.ops.float64 import float64_options, to_float64
from fairseq_lrpe.ops.meta import meta_as_gpu
from fairseq_lrpe.positions import POSITIONS, build_position

E, H, L = 32, 4, 9
# One module for each use of a constant.
USERS = {name: {} for name in ("rope", "t5", "spe", "liere", "retnet")}
USERS["lrpe"] = {"core": "mixed", "rotation": "odd_even"}
USERS["conv_spe"] = {"kernel_size": 70}


def build(name, heads=H, **options):
    torch.manual_seed(0)
    options = {"causal": True, "max_positions": 64} | USERS[name] | options
    return SoftmaxAttention(E, heads, name, **options).eval()


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@contextlib.contextmanager
def default_dtype_float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def run_in_inference_mode(module, x):
    with torch.inference_mode():
        return module(x).clone()


def run_in_fake_mode(module, x):
    tensors = module.state_dict()
    with FakeTensorMode() as mode:
        tensors = {name: mode.from_tensor(p) for name, p in tensors.items()}
        out = functional_call(module, tensors, mode.from_tensor(x))
    assert isinstance(out, FakeTensor) and out.shape == x.shape


def run_exported(module, x):
    with torch.no_grad():
        return torch.export.export(module, (x,)).module()(x)


def run_traced(module, x):
    tensors = {name: p.detach() for name, p in module.state_dict().items()}
    program = make_fx(lambda *args: functional_call(module, *args), tracing_mode="fake")(tensors, x)
    return program(tensors, x)


def run_in_grad(module, x):
    grad(lambda x: module(x).sum())(x)


def run_in_vmap(module, x):
    with torch.no_grad():
        return vmap(lambda row: module(row[None])[0])(x)


def run_with_default_device(module, x):
    with torch.device("meta"):
        return module(x)


def run_with_default_dtype(module, x):
    with default_dtype_float64():
        return module(x)


MODES = [run_in_inference_mode, run_in_fake_mode, run_exported, run_traced, run_in_grad, run_in_vmap]
MODES += [run_with_default_device, run_with_default_dtype]


@pytest.mark.parametrize("run", MODES)
@pytest.mark.parametrize("name", USERS)
def test_modes_do_not_change_numbers(name, run):
    module, x = build(name), inputs(2, L, E)
    expected = build(name)(x)
    constant._cached.cache_clear()
    for _ in range(2):
        try:
            out = run(module, x)
        except RuntimeError:
            if run not in (run_in_grad, run_in_vmap):
                raise
            out = None  # torch's attention or an autograd.Function does not support the transform
        if out is not None:
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
        after = module(x)
        assert after.equal(expected)
        after.sum().backward()


@pytest.mark.exhaustive
@pytest.mark.slow
@torch.no_grad()
def test_compiled_noise():
    torch._dynamo.reset()
    sizes = [("spe", 1, 4), ("spe", 2, 4), ("conv_spe", 1, 4), ("conv_spe", 2, 4), ("conv_spe", 1, 2)]
    model = torch.nn.Sequential(*(build(name, heads, layer=layer) for name, layer, heads in sizes))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for length in (9, 70, 11):
        x = inputs(2, length, E)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


class LearnedDecay(Encoding):
    name = "learned_decay"

    def __init__(self, **shared):
        super().__init__(**shared)
        self.rate = torch.nn.Parameter(torch.full((self.num_heads,), -0.1))

    def log_decay(self, context=START):
        return self.rate


def modules():
    """Yields a function that creates a module, for every encoding in both attentions and all positions.

    Softmax attention is bidirectional if the encoding can be.
    """
    for name, cls in ENCODINGS.items():
        options = {"causal": not cls.bidirectional, "max_positions": 16, "layers": 2}
        options |= USERS["conv_spe"] if name == "conv_spe" else {}
        yield lambda n=name, o=options: SoftmaxAttention(E, H, n, **o).eval()
        if cls.decomposable:
            yield lambda n=name, o=options: LinearAttention(E, H, n, **o | {"causal": True}).eval()
    decay = {"num_heads": H, "head_dim": E // H, "causal": True}
    yield lambda: LinearAttention(E, H, LearnedDecay(**decay))
    for name in POSITIONS:
        yield lambda n=name: build_position(n, embed_dim=E, vocab_size=9, max_positions=64).eval()


def arguments(module):
    if not hasattr(module, "padding_idx"):
        return (inputs(2, L, E),)
    tokens = torch.arange(L).remainder(7).add(2).expand(2, -1)
    return inputs(2, L, module.width), torch.arange(L).expand(2, -1), tokens


@torch.no_grad()
@pytest.mark.parametrize("assign", [False, True], ids=["to_empty", "assign"])
def test_deferred_initialization(assign):
    for create in modules():
        module = create()
        with torch.device("meta"):
            other = create()
        if not assign:
            other.to_empty(device="cpu")
            for tensor in itertools.chain(other.parameters(), other.buffers()):
                tensor.fill_(3)  # to_empty leaves arbitrary values
        other.load_state_dict(module.state_dict(), assign=assign)
        assert other(*arguments(module)).equal(module(*arguments(module))), module


@torch.no_grad()
def test_modules_do_not_need_torchs_newer_functions(monkeypatch):
    """torch 2.4 and 2.6 do not have ``is_exporting``."""
    monkeypatch.delattr(torch.compiler, "is_exporting", raising=False)
    for module in (create() for create in modules()):
        assert module(*arguments(module)).isfinite().all()


@pytest.mark.slow
def test_export_of_attention_with_a_dynamic_batch_size():
    dynamic = {"x": {0: torch.export.Dim("batch")}}
    for module in (create().double() for create in modules()):
        if isinstance(module, SelfAttention):
            exported = torch.export.export(module, (randn(2, L, E),), dynamic_shapes=dynamic).module()
            x = randn(H, L, E).requires_grad_()
            assert_same(*(with_gradients(f(x), [x]) for f in (exported, module)))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_attention_can_be_compiled():
    """In one graph, also encodings whose block sizes or distances otherwise depend on values.

    Linear attention is compiled with each encoding that it supports, softmax attention with the others.
    """
    bidirectional = LinearAttention(E, H, "rope", causal=False)
    for module in (*(create() for create in modules()), bidirectional):
        is_linear = isinstance(module, LinearAttention)
        if is_linear or (isinstance(module, SelfAttention) and not module.encoding.decomposable):
            torch._dynamo.reset()
            module = module.double()
            compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
            is_long = is_linear and module.encoding.name != "cosformer"  # which refuses more than L positions
            x = randn(2, 70 if is_long else L, E).requires_grad_()  # of several chunks
            assert_same(*(with_gradients(f(x), [x]) for f in (compiled, module)))


@pytest.mark.parametrize(
    "name, causal", [("none", True), ("none", False), ("retnet", True), ("fox", True), ("gla", True)]
)
def test_compiled_linear_attention_under_autocast(name, causal):
    torch._dynamo.reset()
    module, x = LinearAttention(E, H, name, causal=causal), inputs(2, 70, E)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = [f(x) for f in (compiled, module)]
    assert_same(*(with_gradients(out, [*module.parameters()]) for out in outputs), tolerance=1e-2)


@pytest.mark.parametrize("name", ["spe", "conv_spe"])
def test_noise_depends_on_neither_dtype(name):
    module, x = build(name), inputs(1, L, E)
    with default_dtype_float64():
        other = build(name)
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other(x.double()).float(), module(x), rtol=1e-4, atol=1e-4)
    assert other.encoding.noise.equal(module.encoding.noise.double())


@torch.no_grad()
def test_noise_of_few_blocks_is_kept():
    encoding = build_encoding("conv_spe", num_heads=2, head_dim=8, causal=True, kernel_size=100).eval()
    x = inputs(1, 2, 2000, 8)
    encoding(x, x)
    for s in range(500, 600):  # each block is drawn once
        encoding(x[:, :, s : s + 1], x[:, :, s : s + 1], Context(s, s))
    info = encoding._blocks._cached.cache_info()
    assert info.currsize == info.maxsize == 3 and info.misses == 33 + 4
    for other in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert other._blocks._cached.cache_info().currsize == 0
        q, context = x[:, :, :5], Context(70, 70)
        assert other(q, q, context)[0].equal(encoding(q, q, context)[0])


class NoFloat64(TorchDispatchMode):
    """Asserts that only the CPU has tensors in float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if torch.is_tensor(x) and x.device.type != "cpu":
                assert x.dtype not in (torch.float64, torch.complex128), f"{func} on {x.device}"
        return out


def test_only_the_cpu_has_float64_and_meta_tensors_are_supported():
    for create in modules():
        with NoFloat64(), torch.device("meta"):
            module = create().train()
            x, *args = (x.to("meta") for x in arguments(module))
            out = module(x.requires_grad_(), *args)
            assert out.is_meta and out.dtype == torch.float32
            out.sum().backward()
            with torch.no_grad():
                module.eval()(x, *args)
                if isinstance(module, SelfAttention) and module.causal:
                    _, state = module(x, return_state=True)
                    module(x[:, :1], state=state, return_state=True)


def test_devices_of_float64():
    x = torch.tensor([1, 2])
    assert to_float64(x).dtype == torch.float64
    for device, where in (("cuda:0", "cuda:0"), ("mps", "cpu")):
        options = {"device": torch.device(where), "dtype": torch.float64}
        assert float64_options(torch.device(device)) == options
    with FakeTensorMode():
        converted = to_float64(torch.ones(E, device="mps:0"))
    assert (converted.device.type, converted.dtype) == ("cpu", torch.float64)


def test_meta_tensors_in_place_of_those_of_a_gpu():
    """They have float64, and modes that count operations find constants in their caches."""
    mode = TorchDispatchMode()
    with mode, meta_as_gpu():
        assert not is_tracing()
        assert float64_options("meta")["dtype"] == torch.float64
    with mode:
        assert is_tracing()
    assert float64_options("meta")["dtype"] == torch.float32
