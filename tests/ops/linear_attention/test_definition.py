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

    If causal, the last query is at the position of the last key. The given state is at the position before
    the first key, and the returned one at the last key.
    """
    batch, heads, queries = q.shape[:3]
    keys = k.size(2)
    places = range(keys - queries, keys) if causal else range(queries)
    gamma = q.new_ones(heads) if log_decay is None else log_decay.exp()
    out, new_kv, new_k = [], [], []
    for b, h in itertools.product(range(batch), range(heads)):
        seen = [j for j in range(keys) if padding is None or not padding[b, j]]
        for row, i in enumerate(places):
            top, bottom = q.new_zeros(v.size(-1)), q.new_zeros(())
            if kv is not None:
                weight = gamma[h] ** (i + 1) if causal else 1
                top = top + weight * (q[b, h, row] @ kv[b, h])
                bottom = bottom + weight * q[b, h, row].dot(k_sum[b, h])
            for j in seen:
                if causal and j > i:
                    continue
                weight = gamma[h] ** (i - j) if causal else 1
                score = weight * q[b, h, row].dot(k[b, h, j])
                top, bottom = top + score * v[b, h, j], bottom + score
            out.append(top / (bottom if bottom > eps else eps) if normalize else top)
        decay = gamma[h] ** keys if causal else 1
        kv_bh = q.new_zeros(q.size(-1), v.size(-1)) if kv is None else decay * kv[b, h]
        k_bh = q.new_zeros(q.size(-1)) if k_sum is None else decay * k_sum[b, h]
        for j in seen:
            key = (gamma[h] ** (keys - 1 - j) if causal else 1) * k[b, h, j]
            kv_bh, k_bh = kv_bh + torch.outer(key, v[b, h, j]), k_bh + key
        new_kv.append(kv_bh)
        new_k.append(k_bh)
    return (
        torch.stack(out).reshape(batch, heads, queries, -1),
        torch.stack(new_kv).unflatten(0, (batch, heads)),
        torch.stack(new_k).unflatten(0, (batch, heads)),
    )


def package(q, k, v, *, padding=None, kv=None, k_sum=None, **kwargs):
    """Calls the package's function with the signature of :func:`definition`."""
    state = None if kv is None else (kv, k_sum)
    out, state = linear_attention(q, k, v, key_padding_mask=padding, state=state, return_state=True, **kwargs)
    return out, *state


def random_inputs(seed, queries, keys, decay=False, state=False, signed=False):
    """Returns float64 tensors by argument name; q and k are positive unless ``signed``."""
    g = torch.Generator().manual_seed(seed)
    draw = torch.randn if signed else torch.rand
    inputs = {
        "q": draw(B, H, queries, D, generator=g, dtype=torch.float64),
        "k": draw(B, H, keys, D, generator=g, dtype=torch.float64),
        "v": torch.randn(B, H, keys, DV, generator=g, dtype=torch.float64),
    }
    if decay:
        inputs["log_decay"] = -torch.rand(H, generator=g, dtype=torch.float64)
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


@pytest.mark.parametrize("state", [False, True], ids=["fresh", "state"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("decay", [False, True], ids=["plain", "decay"])
@pytest.mark.parametrize("normalize", [False, True], ids=["sum", "normalized"])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        *((n, n) for n in (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 1)),
        *((1, 6), (CHUNK + 1, CHUNK + 2), (2 * CHUNK + 1, 3 * CHUNK + 2), (2, 3 * CHUNK)),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_matches_definition(backend, queries, keys, normalize, decay, padded, state):
    inputs = random_inputs(queries, queries, keys, decay, state)
    shared = dict(causal=True, normalize=normalize, padding=random_padding(keys, keys) if padded else None)
    expected = outputs_and_gradients(definition, inputs, **shared)
    actual = outputs_and_gradients(package, inputs, backend=backend, chunk_size=CHUNK, **shared)
    assert_same(actual, expected)


@pytest.mark.parametrize("state", [False, True], ids=["fresh", "state"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("normalize", [False, True], ids=["sum", "normalized"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 6), (6, 1), (7, 7), (3, 2 * CHUNK + 1)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bidirectional_matches_definition(backend, queries, keys, normalize, padded, state):
    inputs = random_inputs(queries, queries, keys, state=state)
    shared = dict(causal=False, normalize=normalize, padding=random_padding(keys, keys) if padded else None)
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
    decay, padded, normalize = (data.draw(st.booleans(), name) for name in "dpn")
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
    g = torch.Generator().manual_seed(0)
    q, k, v = (10 * torch.rand(1, 2, 300, 8, generator=g).to(dtype) for _ in range(3))
    log_decay = torch.tensor([-0.01, -0.3], dtype=dtype) if causal else None
    shared = dict(causal=causal, normalize=False, backend=backend)
    out, state = linear_attention(q, k, v, log_decay=log_decay, return_state=True, **shared)
    assert {x.dtype for x in (out, *state)} == {torch.float32}

    scores = q.double() @ k.double().transpose(-1, -2)
    if causal:
        distance = torch.arange(300)[:, None] - torch.arange(300)
        scores = (scores * torch.exp(log_decay.double()[:, None, None] * distance)).tril()
    expected = scores @ v.double()
    assert expected.max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_keeps_sums_in_float32(backend, causal, dtype):
    q, k, v = (10 * torch.rand(1, 2, 300, 8) for _ in range(3))
    shared = dict(causal=causal, normalize=False, return_state=True, backend=backend)
    expected = linear_attention(q, k, v, **shared)
    with torch.autocast("cpu", dtype=dtype):
        actual = linear_attention(q, k, v, **shared)
    assert_same(actual, expected, 1e-5)


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


@pytest.mark.parametrize(
    "decays",
    [[0, 0.5], [0, 0], [[0, 0.5, 0.9], [0.8, 0, 0]], [[0, 0.3, 0]]],
    ids=["one", "all", "features", "shared"],
)
@pytest.mark.parametrize("length", [1, CHUNK, 3 * CHUNK + 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_decay_of_zero(backend, length, decays):
    inputs = random_inputs(0, length, length, state=True)
    log_decay = torch.tensor(decays, dtype=torch.float64).log().requires_grad_()
    q, *rest = (x.requires_grad_() for x in inputs.values())
    out, *sums = package(
        q,
        *rest[:2],
        causal=True,
        normalize=True,
        kv=rest[2],
        k_sum=rest[3],
        log_decay=log_decay,
        backend=backend,
    )
    gradients = torch.autograd.grad(out.sum() + sum(x.sum() for x in sums), [q, *rest, log_decay])
    assert all(x.isfinite().all() for x in gradients)
    assert not gradients[-1][log_decay.isneginf()].any()

    k, v, kv, k_sum = rest
    gamma = torch.tensor(decays, dtype=torch.float64)
    gamma = (gamma[:, None] if gamma.dim() == 1 else gamma).expand(H, D)
    for i in range(length):
        kv = gamma[..., None] * kv + k[:, :, i, :, None] * v[:, :, i, None]
        k_sum = gamma * k_sum + k[:, :, i]
        bottom = (q[:, :, i] * k_sum).sum(-1, keepdim=True)
        assert_same(out[:, :, i], (q[:, :, i, None] @ kv)[:, :, 0] / bottom)
    assert_same(sums, [kv, k_sum])


@pytest.mark.parametrize(
    ("batch", "queries", "keys"), [(0, 5, 5), (2, 0, 0), (0, 0, 0), (2, 0, 4), (0, 2, 4)]
)
@pytest.mark.parametrize("decay", [False, True], ids=["plain", "decay"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_inputs(backend, causal, decay, batch, queries, keys):
    inputs = random_inputs(0, queries, keys, state=True)
    leaves = {name: x[:batch].requires_grad_() for name, x in inputs.items()}
    options = {"log_decay": torch.tensor([-0.1, -0.2])} if decay and causal else {}
    results = package(**leaves, causal=causal, normalize=True, backend=backend, **options)
    assert [x.shape for x in results] == [(batch, H, queries, DV), (batch, H, D, DV), (batch, H, D)]
    if not keys:
        assert_same(results[1:], (leaves["kv"], leaves["k_sum"]))
    gradients = torch.autograd.grad(sum(x.sum() for x in results), list(leaves.values()))
    assert [x.shape for x in gradients] == [x.shape for x in leaves.values()]
