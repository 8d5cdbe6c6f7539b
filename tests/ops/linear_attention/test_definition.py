"""Compares linear attention with its definition as loops over queries and keys."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_sizes import TensorSizes
from torch.utils._pytree import tree_leaves

from fairseq_lrpe.ops import linear_attention

BACKENDS = ("reference", "chunk")
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
    gamma = q.new_ones(heads) if log_decay is None else log_decay.exp()
    gamma = gamma[:, None] if gamma.dim() == 1 else gamma
    states, out = [], []
    for j in range(keys):
        key = k[:, :, j] if padding is None else k[:, :, j].masked_fill(padding[:, j, None, None], 0.0)
        kv = gamma[..., None] * kv + key[..., None] * v[:, :, j, None]
        k_sum = gamma * k_sum + key
        states.append((kv, k_sum))
    for i, sums in enumerate(states[keys - queries :] if causal else states[-1:] * queries):
        top = (q[:, :, i, None] @ sums[0]).squeeze(2)
        bottom = (q[:, :, i] * sums[1]).sum(-1, keepdim=True)
        out.append(top / torch.where(bottom > eps, bottom, eps) if normalize else top)
    return torch.stack(out, dim=2), kv, k_sum


def package(q, k, v, *, padding=None, kv=None, k_sum=None, **kwargs):
    """Calls the package's function with the signature of :func:`definition`."""
    state = None if kv is None else (kv, k_sum)
    out, state = linear_attention(q, k, v, key_padding_mask=padding, state=state, return_state=True, **kwargs)
    return out, *state


DECAYS = {
    "heads": [0.9, 0.4],
    "features": [[0.9, 0.5, 0.3], [0.7, 1.0, 0.1]],
    "shared": [[0.9, 0.5, 0.3]],
    "zero": [0.0, 0.5],
    "all zero": [0.0, 0.0],
    "zero features": [[0.0, 0.5, 0.9], [0.8, 0.0, 0.0]],
    "shared zero": [[0.0, 0.3, 0.0]],
}


def random_inputs(seed, queries, keys, decay=None, state=False, signed=False):
    """Returns float64 tensors by argument name; q and k are positive unless ``signed``."""
    g = torch.Generator().manual_seed(seed)
    draw = torch.randn if signed else torch.rand
    inputs = {
        "q": draw(B, H, queries, D, generator=g, dtype=torch.float64),
        "k": draw(B, H, keys, D, generator=g, dtype=torch.float64),
        "v": torch.randn(B, H, keys, DV, generator=g, dtype=torch.float64),
    }
    if decay:
        inputs["log_decay"] = torch.tensor(DECAYS[decay], dtype=torch.float64).log()
    if state:
        inputs["kv"] = torch.randn(B, H, D, DV, generator=g, dtype=torch.float64)
        inputs["k_sum"] = torch.rand(B, H, D, generator=g, dtype=torch.float64)
    return inputs


def random_padding(seed, keys):
    return torch.rand(B, keys, generator=torch.Generator().manual_seed(seed)) < 0.4


def outputs_and_gradients(function, inputs, **kwargs):
    """Returns all results, and the gradients of a random weighted sum of them."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    outputs = function(**leaves, **kwargs)
    g = torch.Generator().manual_seed(7)
    loss = sum((o * torch.randn(o.shape, generator=g, dtype=o.dtype)).sum() for o in outputs)
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return outputs, dict(zip(leaves, gradients, strict=True))


def assert_same(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


CASES = [  # causal, queries, keys, normalize, decay, padding, with an initial state
    (True, 1, 1, True, "heads", False, True),
    (True, 1, 1, True, "zero", False, True),
    (True, CHUNK - 1, CHUNK - 1, False, "shared", True, False),
    (True, CHUNK, CHUNK, True, None, True, True),
    (True, CHUNK, CHUNK, True, "all zero", False, True),
    (True, CHUNK, CHUNK, False, "shared zero", False, True),
    (True, CHUNK + 1, CHUNK + 1, True, "features", True, True),
    (True, 3 * CHUNK + 1, 3 * CHUNK + 1, True, "heads", False, False),
    (True, 3 * CHUNK + 1, 3 * CHUNK + 1, False, None, False, True),
    (True, 3 * CHUNK + 1, 3 * CHUNK + 1, True, "zero features", False, True),
    (True, 1, 6, True, "heads", True, True),
    (True, CHUNK + 1, CHUNK + 2, False, "features", False, True),
    (True, 2 * CHUNK + 1, 3 * CHUNK + 2, True, "heads", True, False),
    (True, 2, 3 * CHUNK, True, None, False, False),
    (False, 1, 6, True, None, True, True),
    (False, 6, 1, False, None, False, False),
    (False, 7, 7, True, None, False, True),
    (False, 3, 2 * CHUNK + 1, False, None, True, True),
]


@pytest.mark.parametrize("causal, queries, keys, normalize, decay, padded, state", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_and_gradients_match_definition(
    backend, causal, queries, keys, normalize, decay, padded, state
):
    inputs = random_inputs(queries, queries, keys, decay, state)
    shared = dict(causal=causal, normalize=normalize, padding=random_padding(keys, keys) if padded else None)
    expected = outputs_and_gradients(definition, inputs, **shared)
    actual = outputs_and_gradients(package, inputs, backend=backend, chunk_size=CHUNK, **shared)
    assert_same(actual, expected)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("eps", [1e-6, 0.3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_small_and_negative_denominators_are_clamped_at_eps(backend, eps, causal):
    inputs = random_inputs(3, 11, 11, signed=True)
    inputs["q"][:, :, 3:7] *= eps * 1e-3
    denominator = inputs["q"] @ inputs["k"].transpose(-1, -2)
    denominator = (denominator.tril() if causal else denominator).sum(-1)
    assert (denominator < 0).any() and (denominator > eps).any()
    assert ((denominator > 0) & (denominator < eps)).any()

    shared = dict(causal=causal, normalize=True, eps=eps)
    expected = outputs_and_gradients(definition, inputs, **shared)
    actual = outputs_and_gradients(package, inputs, backend=backend, chunk_size=CHUNK, **shared)
    assert torch.isfinite(actual[0][0]).all()
    for ours, theirs in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        assert_same(ours / theirs.abs().max(), theirs / theirs.abs().max())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_segments_match_full_sequence(data):
    length = data.draw(st.integers(2, 30), "length")
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1)), "cuts"))
    padded, normalize = (data.draw(st.booleans(), name) for name in "pn")
    decay = data.draw(st.sampled_from([None, "heads", "features"]), "decay")
    inputs = random_inputs(data.draw(st.integers(0, 1000), "seed"), length, length, decay)
    padding = random_padding(length, length) if padded else None
    shared = dict(
        causal=True,
        normalize=normalize,
        log_decay=inputs.pop("log_decay", None),
        chunk_size=data.draw(st.integers(1, 9), "chunk size"),
        backend=data.draw(st.sampled_from(BACKENDS), "backend"),
    )
    whole = package(**inputs, padding=padding, **shared)

    pieces, state = [], {}
    for start, stop in itertools.pairwise([0, *cuts, length]):
        segment = {name: x[:, :, start:stop] for name, x in inputs.items()}
        mask = None if padding is None else padding[:, start:stop]
        piece, kv, k_sum = package(**segment, padding=mask, **state, **shared)
        pieces.append(piece)
        state = {"kv": kv, "k_sum": k_sum}
    assert_same((torch.cat(pieces, dim=2), *state.values()), whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_is_summed_and_returned_in_float32(backend, causal, dtype):
    """Results exceed the range of float16. Autocast does not change those of inputs in float32."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (10 * torch.rand(1, 2, 300, 8, generator=g).to(dtype) for _ in range(3))
    log_decay = torch.tensor([-0.01, -0.3], dtype=dtype) if causal else None
    shared = dict(causal=causal, normalize=False, backend=backend, log_decay=log_decay)
    out, state = linear_attention(q, k, v, return_state=True, **shared)
    assert {x.dtype for x in (out, *state)} == {torch.float32}
    scores = q.double() @ k.double().transpose(-1, -2)
    if causal:
        distance = torch.arange(300)[:, None] - torch.arange(300)
        scores = (scores * torch.exp(log_decay.double()[:, None, None] * distance)).tril()
    expected = scores @ v.double()
    assert expected.max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)
    with torch.autocast("cpu", dtype=dtype):
        assert_same(linear_attention(q.float(), k.float(), v.float(), **shared), out, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strong_decay_on_a_long_sequence(dtype):
    g = torch.Generator().manual_seed(0)
    n = 5000
    q, k, v = (torch.rand(1, 2, n, 3, generator=g).to(dtype).requires_grad_() for _ in range(3))
    log_decay = torch.tensor([-10.0, -700.0], dtype=dtype, requires_grad=True)
    out, state = linear_attention(
        q, k, v, causal=True, normalize=True, log_decay=log_decay, return_state=True
    )
    (out.sum() + sum(x.sum() for x in state)).backward()
    for x in (out, *state, *(leaf.grad for leaf in (q, k, v, log_decay))):
        assert torch.isfinite(x).all()

    top, bottom = 0, 0  # weights more than eight positions back are below e^-80
    for back in range(8):
        past = [torch.cat([x.new_zeros(1, 2, back, 3), x[:, :, : n - back]], dim=2) for x in (k, v)]
        score = (q * past[0]).sum(-1) * torch.exp(log_decay * back)[:, None]
        top, bottom = top + score[..., None] * past[1], bottom + score
    expected = top / bottom[..., None]
    assert_same(out, expected, 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("decay", [None, torch.tensor([-0.1])], ids=["plain", "decay"])
def test_chunk_memory_is_linear(decay):
    def measure(n, backend, **options):
        q, k, v = (torch.rand(1, 1, n, 8, requires_grad=True) for _ in range(3))
        with TensorSizes() as sizes:
            linear_attention(q, k, v, backend=backend, normalize=True, **options).sum().backward()
        return sizes

    n, causal = 4096, {"causal": True, "log_decay": decay}
    once, twice = measure(n, "chunk", **causal), measure(2 * n, "chunk", **causal)
    assert once.largest <= 64 * n  # n²/64
    assert twice.total <= 2.5 * once.total
    assert measure(n, "chunk", causal=False).largest <= 64 * n
    assert measure(512, "reference", **causal).largest == 512**2


@pytest.mark.parametrize("batch, queries, keys", [(0, 5, 5), (2, 0, 0), (2, 0, 4), (0, 2, 4)])
@pytest.mark.parametrize("causal, decay", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_inputs(backend, causal, decay, batch, queries, keys):
    inputs = random_inputs(0, queries, keys, state=True)
    leaves = {name: x[:batch].requires_grad_() for name, x in inputs.items()}
    options = {"log_decay": torch.tensor([-0.1, -0.2])} if decay else {}
    results = package(**leaves, causal=causal, normalize=True, backend=backend, **options)
    assert [x.shape for x in results] == [(batch, H, queries, DV), (batch, H, D, DV), (batch, H, D)]
    if not keys:
        assert_same(results[1:], (leaves["kv"], leaves["k_sum"]))
    gradients = torch.autograd.grad(sum(x.sum() for x in results), list(leaves.values()))
    assert [x.shape for x in gradients] == [x.shape for x in leaves.values()]
