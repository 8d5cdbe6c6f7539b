"""Values by relative distance against loops over indices."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lrpe.ops.relative import distance_table, shift, spread

quick = settings(max_examples=60, deadline=None, derandomize=True)
sizes = {
    "queries": st.integers(1, 9),
    "before": st.integers(0, 9),
    "after": st.integers(-8, 9),
    "causal": st.booleans(),
}


def keys_of(queries, before, after, causal):
    """As many keys as there are when ``before`` of them precede the queries; any number if bidirectional."""
    return before + queries if causal else max(1, before + queries + after)


def distances(queries, keys, q_offset, causal):
    """From the last query's to key 0 down to the first query's to the last key, or to 0; and one more."""
    least = 0 if causal else q_offset - (keys - 1)
    return list(range(q_offset + queries - 1, least - 2, -1))


def identity(r):
    return r


def polynomial(r, a, b):
    return torch.stack([a * r, r * r + b], dim=-1).double()


@quick
@given(**sizes)
def test_shift_is_its_loop(queries, before, after, causal):
    keys = keys_of(queries, before, after, causal)
    x = torch.randn(2, 3, queries, len(distances(queries, keys, before, causal)), requires_grad=True)
    out = shift(x, keys)
    assert out.shape == (2, 3, queries, keys) and torch.isfinite(out).all()
    seen = torch.zeros_like(x)
    for i, j in itertools.product(range(queries), range(keys)):
        if not causal or j <= before + i:
            assert out[..., i, j].equal(x[..., i, j - i + queries - 1])
            seen[..., i, j - i + queries - 1] += 1
    visible = torch.tensor([[not causal or j <= before + i for j in range(keys)] for i in range(queries)])
    assert torch.autograd.grad((out * visible).sum(), x)[0].equal(seen)


def test_shift_is_a_view():
    x = torch.randn(2, 5, 12)
    assert shift(x, 7).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@quick
@given(**sizes)
def test_spread_is_its_loop(queries, before, after, causal):
    keys = keys_of(queries, before, after, causal)
    x = torch.randn(2, len(distances(queries, keys, before, causal)), requires_grad=True)
    out = spread(x, queries, keys)
    assert out.shape == (2, queries, keys)
    seen = torch.zeros_like(x)
    for i, j in itertools.product(range(queries), range(keys)):
        if not causal or j <= before + i:
            assert out[:, i, j].equal(x[:, j - i + queries - 1])
            seen[:, j - i + queries - 1] += 1
    visible = torch.tensor([[not causal or j <= before + i for j in range(keys)] for i in range(queries)])
    assert torch.autograd.grad((out * visible).sum(), x)[0].equal(seen)


@quick
@given(**{**sizes, "queries": st.integers(1, 300), "before": st.integers(-300, 300)})
def test_the_table_holds_the_functions_values(queries, before, after, causal):
    before = max(0, before) if causal else before  # queries may stand before all keys
    keys = keys_of(queries, before, after, causal)
    expected = torch.tensor(distances(queries, keys, before, causal))
    arguments = (queries, keys, before, causal, torch.device("cpu"))
    assert distance_table(identity, (), *arguments).equal(expected)
    values = distance_table(polynomial, (3, -2), *arguments, torch.float32)
    assert values.equal(torch.stack([3 * expected, expected**2 - 2], dim=-1).float())


@quick
@given(**sizes)
def test_table_and_matrix_together(queries, before, after, causal):
    keys = keys_of(queries, before, after, causal)
    r = distance_table(identity, (), queries, keys, before, causal, torch.device("cpu"))
    matrices = spread(r, queries, keys), shift(r.expand(queries, -1), keys)
    for i, j in itertools.product(range(queries), range(keys)):
        if not causal or j <= before + i:
            assert [m[i, j] for m in matrices] == [before + i - j] * 2


def test_a_table_is_made_once_and_serves_many_lengths():
    calls = []

    def counted(r, factor):
        calls.append(len(r))
        return factor * r

    def table(queries, offset, causal, factor=2):
        return distance_table(
            counted, (factor,), queries, offset + queries, offset, causal, torch.device("cpu")
        )

    for queries, offset, causal in itertools.product((1, 20, 60), (0, 2), (True, False)):
        table(queries, offset, causal)
    assert len(calls) == 1
    table(60, 2, True, factor=3)
    assert len(calls) == 2
    for length in range(100, 120):
        assert table(length, 0, False)[0] == 2 * (length - 1)
    assert len(calls) == 3


@pytest.mark.parametrize("causal", [False, True])
def test_a_table_made_in_inference_mode_serves_training(causal):
    def root(r):
        return r.abs().double().sqrt()

    arguments = (root, (), 4, 4, 0, causal, torch.device("cpu"), torch.float64)
    with torch.inference_mode():
        distance_table(*arguments)
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    table = distance_table(*arguments)
    (weight * table).sum().backward()
    assert weight.grad.equal(table.sum()) and weight.grad > 0
