"""Compares linear attention with its definition as loops over queries and keys."""

import itertools
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.linear_results import attend, positive, random_inputs, results
from support.tensor_sizes import TensorSizes
from support.tensors import assert_same, randn

from fairseq_lrpe.ops import linear_attention, threads

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear.chunk")
both = pytest.mark.parametrize("backend", ["reference", "chunk"])
B, H, D, DV = 2, 2, 3, 4
CHUNK = 4


def definition(q, k, v, *, causal, normalize, log_decay=None, padding=None, kv=None, k_sum=None, eps=1e-6):
    """o_i = Σ_j γ^(i-j) (q_i·k_j) v_j [/ max(Σ_j γ^(i-j) q_i·k_j, eps)], and the state after it.

    Adds one key after the other to the state (Σ_j γ^(i-j) k_j v_jᵀ, Σ_j γ^(i-j) k_j). If causal, the last
    query is at the position of the last key.
    """
    (batch, heads, queries, d), keys = q.shape, k.size(2)
    kv = q.new_zeros(batch, heads, d, v.size(-1)) if kv is None else kv
    k_sum = q.new_zeros(batch, heads, d) if k_sum is None else k_sum
    gammas = q.new_ones(heads) if log_decay is None else log_decay.exp()
    gammas = gammas[..., None] if gammas.dim() in (1, 3) else gammas
    states, out = [], []
    for j in range(keys):
        key, gamma = k[:, :, j], gammas if gammas.dim() == 2 else gammas[:, :, j]
        if padding is not None:
            hidden = padding[:, j, None, None]
            key = key.masked_fill(hidden, 0.0)
            gamma = gamma.masked_fill(hidden, 1.0) if gammas.dim() > 2 else gamma
        kv = gamma[..., None] * kv + key[..., None] * v[:, :, j, None]
        k_sum = gamma * k_sum + key
        states.append((kv, k_sum))
    for i, sums in enumerate(states[keys - queries :] if causal else states[-1:] * queries):
        top = (q[:, :, i, None] @ sums[0]).squeeze(2)
        bottom = (q[:, :, i] * sums[1]).sum(-1, keepdim=True)
        out.append(top / torch.where(bottom > eps, bottom, eps) if normalize else top)
    return torch.stack(out, dim=2), kv, k_sum


DECAYS = {
    "heads": [0.9, 0.4],
    "features": [[0.9, 0.5, 0.3], [0.7, 1.0, 0.1]],
    "shared": [[0.9, 0.5, 0.3]],
    "zero": [0.0, 0.5],
    "all zero": [0.0, 0.0],
    "zero features": [[0.0, 0.5, 0.9], [0.8, 0.0, 0.0]],
    "shared zero": [[0.0, 0.3, 0.0]],
}
VARYING_DECAYS = {"gates": (), "feature gates": (D,)}
"""Decays of each key; each fifth is 0."""


def inputs_with_decay(queries, keys, decay=None, state=False):
    inputs = random_inputs(queries, keys, state=state)
    if decay in VARYING_DECAYS:
        gates = positive(B, H, keys, *VARYING_DECAYS[decay], seed=6)
        inputs["log_decay"] = gates.masked_fill(gates < 0.2, 0.0).log()
    elif decay:
        inputs["log_decay"] = torch.tensor(DECAYS[decay], dtype=torch.float64).log()
    return inputs


def random_padding(keys):
    return torch.rand(B, keys, generator=torch.Generator().manual_seed(keys)) < 0.4


CASES = [  # causal, queries, keys, normalize, decay, padding, with an initial state
    (True, 1, 1, True, "zero", False, True),
    (True, CHUNK - 1, CHUNK - 1, False, "shared", True, False),
    (True, CHUNK, CHUNK, True, "all zero", False, True),
    (True, CHUNK, CHUNK, False, "shared zero", False, True),
    (True, CHUNK + 1, CHUNK + 1, True, "features", True, True),
    (True, 3 * CHUNK + 1, 3 * CHUNK + 1, False, None, False, True),
    (True, 3 * CHUNK + 1, 3 * CHUNK + 1, True, "zero features", False, True),
    (True, 1, 6, True, "heads", True, True),
    (True, 1, 1, False, "gates", False, True),
    (True, 3 * CHUNK + 1, 3 * CHUNK + 1, True, "gates", True, True),
    (True, 2 * CHUNK + 1, 3 * CHUNK + 2, False, "gates", True, False),
    (True, CHUNK - 1, CHUNK - 1, False, "feature gates", True, True),
    (True, 2 * CHUNK + 1, 3 * CHUNK + 2, True, "feature gates", True, True),
    (True, 1, 6, True, "feature gates", False, True),
    (True, 2 * CHUNK + 1, 3 * CHUNK + 2, True, "heads", True, False),
    (False, 6, 1, False, None, False, False),
    (False, 3, 2 * CHUNK + 1, True, None, True, True),
]


@pytest.mark.parametrize(
    "backend, num_threads, of_gpus",
    [("reference", 1, False), ("chunk", 1, False), ("chunk", 4, False), ("chunk", 1, True)],
)
@pytest.mark.parametrize("causal, queries, keys, normalize, decay, padded, state", CASES)
def test_outputs_and_gradients_match_definition(
    monkeypatch,
    set_threads,
    backend,
    num_threads,
    of_gpus,
    causal,
    queries,
    keys,
    normalize,
    decay,
    padded,
    state,
):
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: of_gpus)
    monkeypatch.setattr(threads, "_MIN_ELEMENTS", 1)
    set_threads(num_threads)
    inputs, padding = inputs_with_decay(queries, keys, decay, state), random_padding(keys) if padded else None
    shared = {"causal": causal, "normalize": normalize}
    actual = results(inputs, backend=backend, chunk_size=CHUNK, key_padding_mask=padding, **shared)
    assert_same(actual, results(inputs, definition, padding=padding, **shared))


@both
@pytest.mark.parametrize("decay", [None, *DECAYS, *VARYING_DECAYS])
@pytest.mark.parametrize("normalize", [True, False])
def test_one_query_without_sums(backend, decay, normalize):
    """A decoding step with cached keys: the products with the keys replace the sums over them."""
    inputs, padding = inputs_with_decay(1, 6, decay), random_padding(6)
    shared = {"causal": True, "normalize": normalize}
    expected = results(inputs, lambda **x: definition(padding=padding, **shared, **x)[0])
    options = {"key_padding_mask": padding, "backend": backend, **shared}
    assert_same(results(inputs, linear_attention, **options), expected)


@both
@pytest.mark.parametrize("eps, causal", [(1e-6, True), (0.3, True), (0.3, False)])
def test_small_and_negative_denominators_are_clamped_at_eps(backend, eps, causal):
    inputs = random_inputs(11, 11) | {"q": randn(B, H, 11, D, seed=3), "k": randn(B, H, 11, D, seed=4)}
    inputs["q"][:, :, 3:7] *= eps * 1e-3
    denominator = inputs["q"] @ inputs["k"].mT
    denominator = (denominator.tril() if causal else denominator).sum(-1)
    assert (denominator < 0).any() and (denominator > eps).any()
    assert ((denominator > 0) & (denominator < eps)).any()

    shared = {"causal": causal, "normalize": True, "eps": eps}
    expected = results(inputs, definition, **shared)
    found = results(inputs, backend=backend, chunk_size=CHUNK, **shared)
    for ours, exact in zip(found, expected, strict=True):
        assert_same(ours / exact.abs().max(), exact / exact.abs().max())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_segments_match_full_sequence(data):
    length = data.draw(st.integers(2, 30), "length")
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1)), "cuts"))
    decay = data.draw(st.sampled_from([None, "heads", "features", *VARYING_DECAYS]), "decay")
    inputs, padding = inputs_with_decay(length, length, decay), random_padding(length)
    shared = {
        "causal": True,
        "normalize": data.draw(st.booleans(), "normalize"),
        "chunk_size": data.draw(st.integers(1, 9), "chunk size"),
        "backend": data.draw(st.sampled_from(["reference", "chunk"]), "backend"),
    }
    if decay in DECAYS:
        shared["log_decay"] = inputs.pop("log_decay")
    whole = attend(**inputs, key_padding_mask=padding, **shared)
    pieces, state = [], {}
    for start, stop in itertools.pairwise([0, *cuts, length]):
        segment = {name: x[:, :, start:stop] for name, x in inputs.items()}
        piece, kv, k_sum = attend(**segment, key_padding_mask=padding[:, start:stop], **state, **shared)
        pieces.append(piece)
        state = {"kv": kv, "k_sum": k_sum}
    assert_same((torch.cat(pieces, dim=2), *state.values()), whole)


@both
@pytest.mark.parametrize(
    "causal, dtype", [(False, torch.float16), (True, torch.float16), (True, torch.bfloat16)]
)
def test_half_precision_is_summed_and_returned_in_float32(backend, causal, dtype):
    """Results exceed the range of float16. Autocast does not change those of inputs in float32."""
    q, k, v = (10 * torch.rand(1, 2, 300, 8).to(dtype) for _ in range(3))
    log_decay = torch.tensor([-0.01, -0.3], dtype=dtype) if causal else None
    shared = {"causal": causal, "normalize": False}
    options = shared | {"backend": backend, "log_decay": log_decay}
    out, state = linear_attention(q, k, v, return_state=True, **options)
    assert {x.dtype for x in (out, *state)} == {torch.float32}
    shared["log_decay"] = None if log_decay is None else log_decay.double()
    expected, *_ = definition(q.double(), k.double(), v.double(), **shared)
    assert expected.max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)
    with torch.autocast("cpu", dtype=dtype):
        assert_same(linear_attention(q.float(), k.float(), v.float(), **options), out, 1e-5)


@pytest.mark.parametrize("of_gpus, rows", [(False, 64), (True, 128)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("decay", [None, torch.tensor([-0.1])], ids=["plain", "decay"])
def test_chunk_memory_is_linear(decay, of_gpus, rows, monkeypatch):
    """No tensor has more elements than the scores of chunks with ``rows`` rows."""
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: of_gpus)

    def measure(n, backend, **options):
        q, k, v = (torch.rand(1, 1, n, 8, requires_grad=True) for _ in range(3))
        with TensorSizes() as sizes:
            linear_attention(q, k, v, backend=backend, normalize=True, **options).sum().backward()
        return sizes

    n, causal = 4096, {"causal": True, "log_decay": decay}
    once, twice = measure(n, "chunk", **causal), measure(2 * n, "chunk", **causal)
    assert once.largest <= rows * n
    assert twice.total <= 2.5 * once.total
    assert measure(n, "chunk", causal=False).largest <= 64 * n
    assert measure(512, "reference", **causal).largest == 512**2


@both
@pytest.mark.parametrize("causal, decay", [(False, None), (True, None), (True, "heads")])
def test_empty_inputs(backend, causal, decay):
    for batch, queries, keys in ((0, 5, 5), (2, 0, 0), (2, 0, 4), (0, 2, 4)):
        inputs = random_inputs(queries, keys, batch=batch, state=True)
        log_decay = decay and torch.tensor(DECAYS[decay], dtype=torch.float64).log()
        found = results(inputs, causal=causal, normalize=True, backend=backend, log_decay=log_decay)
        assert [x.shape for x in found[3:]] == [x.shape for x in inputs.values()]
        assert found[0].shape == (batch, H, queries, DV)
        if not keys:
            assert_same(found[1:3], (inputs["kv"], inputs["k_sum"]))
