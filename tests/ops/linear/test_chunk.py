"""Tests the chunk backend and products with decays: the reference, precision, memory layout, errors."""

from importlib import import_module
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.linear_results import positive, random_inputs, results
from support.tensors import assert_same

from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.ops import constants, linear_attention
from fairseq_lrpe.ops.decay import decayed_products, gated_block_size
from fairseq_lrpe.ops.linear import LinearState

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear.chunk")
PARTS_MODULE = import_module("fairseq_lrpe.ops.linear.parts")
CAUSAL = {"causal": True, "normalize": True}
both_forms = pytest.mark.parametrize("of_gpus", [False, True], ids=["cpu", "gpu"])


def form(of_gpus=True):
    """Lets CPUs compute all chunks at once, as GPUs do, or parts that fit the cache."""
    return patch.object(CHUNK_MODULE, "_uses_all_chunks", lambda q: of_gpus)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(data=st.data())
def test_chunk_matches_reference(data):
    n, before = data.draw(st.integers(1, 300), "length"), data.draw(st.sampled_from([0, 0, 1, 30]), "before")
    batch, heads = (data.draw(st.integers(1, 3), x) for x in "BH")
    d, dv = (data.draw(st.integers(1, 9), x) for x in ("d", "dv"))
    inputs = random_inputs(n, before + n, d, dv, batch, heads, data.draw(st.booleans(), "state"))
    constant, varying = [(heads,), (heads, d), (1, d)], (batch, heads, before + n)
    shape = data.draw(st.sampled_from([None, *constant, varying, (*varying, d)]), "decay")
    if shape:
        strength = data.draw(st.sampled_from([0.01, 1.0, 30.0, 700.0]), "strength")
        inputs["log_decay"] = -strength * positive(*shape) ** 3
    probability = data.draw(st.sampled_from([None, 0.5, 1.0]), "padding")
    padding = probability and positive(batch, before + n, seed=6) < probability
    options = {
        "causal": True,
        "normalize": data.draw(st.booleans(), "normalize"),
        "key_padding_mask": padding,
    }
    size = data.draw(st.sampled_from([None, 1, 7, 16, 64]), "chunk size")
    # Elements processed at once: one chunk of one sequence, some chunks, or all.
    elements = data.draw(st.sampled_from([1, 500, 2000, 2**18]), "elements")
    of_gpus = data.draw(st.booleans(), "form of GPUs")
    with patch.object(PARTS_MODULE, "_ELEMENTS", elements), form(of_gpus):
        actual = results(inputs, backend="chunk", chunk_size=size, **options)
    assert_same(actual, results(inputs, backend="reference", **options))


@pytest.mark.parametrize("decay, size", [(-0.5, 64), (-1.5, 32), (-3, 16), (-50, 16)])
def test_strong_decays_have_smaller_chunks(decay, size):
    log_decay = torch.full((1, 1, 100, 2), -0.01)
    log_decay[:, :, 40:80, 1] = decay
    assert gated_block_size(log_decay, 64) == size


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.5, 40.0])
def test_decayed_products_stay_in_float32_range(rate, autocast):
    decay = -rate * torch.tensor([[1.0, 0.3, 0.0, 0.01]], dtype=torch.float64)
    q, k = torch.rand(1, 2, 100, 4, dtype=torch.float64), torch.rand(1, 2, 3000, 4, dtype=torch.float64)
    distance = torch.arange(2900, 3000)[:, None] - torch.arange(3000)
    weights = torch.exp(decay[0] * distance[..., None].clamp(min=0))
    expected = torch.einsum("bhid,bhjd,ijd->bhij", q, k, weights).tril(2900)
    with torch.autocast("cpu", enabled=autocast):
        found = decayed_products(decay, q.float(), k.float())(q.float(), k.float(), 2900)
    assert found.isfinite().all()
    torch.testing.assert_close(found.tril(2900).double(), expected, rtol=1e-5, atol=1e-6)


def relative_errors(actual, exact):
    pairs = zip(actual, exact, strict=True)
    return [((ours.double() - theirs).abs().max() / theirs.abs().max()).item() for ours, theirs in pairs]


@both_forms
@pytest.mark.parametrize("shape, dtype", [
    (None, torch.float16),
    (None, torch.bfloat16),
    ((2,), torch.float16),
    pytest.param((2, 16), torch.bfloat16, marks=pytest.mark.slow),
    pytest.param((1, 16), torch.float16, marks=pytest.mark.slow),
    ((2, 2, 1024), torch.bfloat16),
    pytest.param((2, 2, 1024, 16), torch.float16, marks=pytest.mark.slow),
])  # fmt: skip
def test_half_precision_against_float64(shape, dtype, of_gpus):
    half = {name: torch.rand(2, 2, 1024, 16).to(dtype) for name in "qkv"}
    if shape:
        half["log_decay"] = -0.05 * torch.rand(shape)
    exact = {name: x.double() for name, x in half.items()}
    with form(of_gpus):
        ours = results(half, **CAUSAL)
    errors = relative_errors(ours, results(exact, backend="reference", **CAUSAL))
    assert [x.dtype for x in ours[:6]] == [torch.float32] * 3 + [dtype] * 3
    assert max(errors[:3]) <= 1e-5 and max(errors[3:6]) <= 2 * torch.finfo(dtype).eps
    # As accurate as with inputs in float32, whose error is up to 3e-5.
    assert all(error <= 1e-4 for error in errors[6:])


@both_forms
@pytest.mark.parametrize("features", [(), (8,)], ids=["head", "features"])
def test_sums_after_strong_decays(features, of_gpus):
    inputs = {name: torch.rand(1, 2, 4096, 8) for name in "qkv"}
    inputs["log_decay"] = torch.full((1, 2, 4096, *features), -1e-4)
    inputs["log_decay"][:, :, :2048] = -2.0  # their sum is -4096, where float32 has steps of 0.0005
    exact = results({name: x.double() for name, x in inputs.items()}, backend="chunk", **CAUSAL)
    with form(of_gpus):
        ours = results(inputs, backend="chunk", **CAUSAL)
    assert max(relative_errors(ours[:6], exact[:6])) <= 1e-5


@pytest.mark.parametrize(
    "decay",
    [None, [-1e-5, -700.0], [[-1e-5, -1e-3, -0.01, -0.1, -0.5, -1.0, -2.0, -3.0]]],
    ids=["plain", "decay", "features"],
)
@both_forms
def test_100_000_tokens(decay, of_gpus):
    inputs = {name: torch.rand(1, 2, 100_000, 8) for name in "qkv"}
    if decay:
        inputs["log_decay"] = torch.tensor(decay)
    exact = results({name: x.double() for name, x in inputs.items()}, backend="chunk", **CAUSAL)
    with form(of_gpus):
        actual = results(inputs, backend="chunk", **CAUSAL)
    assert all(error <= 1e-4 for error in relative_errors(actual, exact))  # false for NaN


@pytest.mark.parametrize(
    "causal, of_gpus", [(False, False), (True, False), (True, True)], ids=["bidirectional", "causal", "gpu"]
)
def test_strided_inputs_are_not_modified(causal, of_gpus, monkeypatch):
    """q, k and v as views of a projection's output (L, B, H·d) give the same results and are not modified.

    The output lies in memory as they do, so that it goes on as (L, B, H·d) without a copy, and so do the
    gradients of causal attention. A second backward pass gives the same gradients.
    """
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: of_gpus)
    rows = {name: positive(70, 2, 3 * 4, seed=seed) for seed, name in enumerate("qkv")}
    views = {name: x.unflatten(-1, (3, 4)).permute(1, 2, 0, 3) for name, x in rows.items()}
    before = {name: x.clone() for name, x in rows.items()}
    decay = torch.tensor([-0.1, -1.0, -2.0], dtype=torch.float64) if causal else None
    options = {"causal": causal, "normalize": True, "log_decay": decay}
    plain = results({name: x.contiguous() for name, x in views.items()}, **options)
    assert_same(results(views, **options), plain, 1e-13)
    leaves = [x.detach().requires_grad_() for x in views.values()]
    out = linear_attention(*leaves, **options)
    first, second = (torch.autograd.grad(out.sum(), leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(rows[name], before[name]) for name in rows)
    assert all(x.permute(2, 0, 1, 3).is_contiguous() for x in (out, *first * causal))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "causal, of_gpus", [(False, False), (True, False), (True, True)], ids=["bidirectional", "causal", "gpu"]
)
def test_outputs_can_be_modified_in_place(causal, of_gpus, monkeypatch):
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: of_gpus)
    inputs = [positive(1, 2, 20, 4, seed=seed).requires_grad_() for seed in range(3)]
    gate = positive(1, 2, 20, 4, seed=3)
    gradients = [
        torch.autograd.grad(scaled(linear_attention(*inputs, causal=causal, normalize=False)).sum(), inputs)
        for scaled in (gate.mul, lambda out: out.mul_(gate))
    ]
    assert_same(*gradients)


@pytest.mark.parametrize("backend", ["chunk", "reference"])
@pytest.mark.parametrize("needed", ["kv", "k_sum"])
def test_gradients_of_one_part_of_the_state(backend, needed):
    """The keys of bidirectional attention can be fewer than the queries."""
    q, k, v = positive(1, 2, 7, 4), positive(1, 2, 2, 4, seed=1), positive(1, 2, 2, 3, seed=2)
    state = LinearState(positive(1, 2, 4, 3, seed=3), positive(1, 2, 4, seed=4))
    leaf = getattr(state, needed).requires_grad_()
    out = linear_attention(q, k, v, causal=False, normalize=True, state=state, backend=backend)
    dividend, divisor = q @ (state.kv + k.mT @ v), q @ (state.k_sum + k.sum(2))[..., None]
    assert_same(*((y, *torch.autograd.grad(y.square().sum(), leaf)) for y in (out, dividend / divisor)))


Q, V = torch.rand(2, 3, 5, 4), torch.rand(2, 3, 5, 6)
STATE = torch.zeros(2, 3, 4, 6), torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": Q[0]}, "^q must have shape"),
        ({"k": Q[..., :3]}, "^k must have shape"),
        ({"v": V[:, :1]}, "^v must have shape"),
        ({"state": (STATE[0].mT, STATE[1])}, r"^state\[0\].* must have shape"),
        ({"state": (STATE[0], STATE[1][:1])}, r"^state\[1\].* must have shape"),
        ({"log_decay": torch.zeros(2)}, r"^log_decay must have shape .* not \(2,\)$"),
        ({"log_decay": torch.zeros(2, 3, 4)}, r"^log_decay must .* \(2, 3, 5, 4\) for .* not \(2, 3, 4\)$"),
        ({"log_decay": torch.zeros(3), "causal": False}, "causal=True"),
        ({"key_padding_mask": torch.zeros(2, 4) > 0}, "^key_padding_mask must have shape"),
        ({"key_padding_mask": torch.zeros(2, 5)}, "^key_padding_mask must be bool"),
        ({"q": torch.cat([Q, Q], dim=2)}, "as many keys as queries"),
        ({"chunk_size": 0}, "^chunk_size must be at least 1"),
        ({"backend": "magic"}, "'magic'.*auto, reference, chunk, fla, triton"),
        ({"backend": "fla"}, "^backend 'fla' "),
        ({"backend": "triton"}, "^backend 'triton' "),
    ],
)
def test_invalid_arguments_are_rejected(change, message):
    arguments = {"q": Q, "k": Q, "v": V, **CAUSAL}
    linear_attention(**arguments, state=STATE)
    with pytest.raises(ValueError, match=message):
        linear_attention(**{**arguments, **change})


def test_cached_weights_of_constant_decays_are_small(monkeypatch):
    """The weights of many lengths stay on the device."""
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: True)
    constants._derived.cache_clear()
    module = LinearAttention(32, 16, "alibi", causal=True)
    with torch.no_grad():
        for length in range(2, 513, 3):
            module(torch.zeros(1, length, 32))
    tensors = [x for x in constants._results if x.dim() == 5]
    assert tensors and sum(x.nbytes for x in tensors) < 100 * 2**20
