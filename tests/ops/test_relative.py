"""Compares functions of relative distances with loops over indices."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lrpe.ops.relative import distance_table, expand_distances, relative_shift

quick = settings(max_examples=60, deadline=None, derandomize=True)
sizes = {
    "queries": st.integers(1, 9),
    "before": st.integers(0, 9),
    "after": st.integers(-8, 9),
    "causal": st.booleans(),
}


def keys_of(queries, before, after, causal):
    """Returns the number of keys if ``before`` of them precede the queries; any number if bidirectional."""
    return before + queries if causal else max(1, before + queries + after)


def distances(queries, keys, q_offset, causal):
    """Returns the distances from the last query and key 0 to the first query and last key, plus one more."""
    least = 0 if causal else q_offset - (keys - 1)
    return list(range(q_offset + queries - 1, least - 2, -1))


def identity(r):
    return r


def polynomial(r, a, b):
    return torch.stack([a * r, r * r + b], dim=-1).double()


@quick
@given(shift=st.booleans(), **sizes)
def test_matrices_match_loop(shift, queries, before, after, causal):
    """``relative_shift`` takes a row for each query, ``expand_distances`` one for all of them."""
    keys = keys_of(queries, before, after, causal)
    rows, distinct = queries if shift else 1, len(distances(queries, keys, before, causal))
    x = torch.randn(2, rows, distinct, requires_grad=True)
    out = relative_shift(x, keys) if shift else expand_distances(x[:, 0], queries, keys)
    assert out.shape == (2, queries, keys) and torch.isfinite(out).all()
    seen, visible = torch.zeros_like(x), torch.zeros(queries, keys)
    for i, j in itertools.product(range(queries), range(keys)):
        if not causal or j <= before + i:
            assert out[:, i, j].equal(x[:, i % rows, j - i + queries - 1])
            seen[:, i % rows, j - i + queries - 1] += 1
            visible[i, j] = 1
    assert torch.autograd.grad((out * visible).sum(), x)[0].equal(seen)


def test_relative_shift_is_a_view():
    x = torch.randn(2, 5, 12)
    assert relative_shift(x, 7).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@quick
@given(**{**sizes, "queries": st.integers(1, 300), "before": st.integers(-300, 300)})
def test_table_contains_the_values_of_the_function(queries, before, after, causal):
    before = max(0, before) if causal else before  # queries may precede all keys
    keys = keys_of(queries, before, after, causal)
    expected = torch.tensor(distances(queries, keys, before, causal))
    arguments = (queries, keys, before, causal, torch.device("cpu"))
    assert distance_table(identity, (), *arguments).equal(expected)
    values = distance_table(polynomial, (3, -2), *arguments, torch.float32)
    assert values.equal(torch.stack([3 * expected, expected**2 - 2], dim=-1).float())


def test_one_cached_table_serves_many_lengths():
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
def test_table_cached_in_inference_mode_works_in_training(causal):
    def root(r):
        return r.abs().double().sqrt()

    arguments = (root, (), 4, 4, 0, causal, torch.device("cpu"), torch.float64)
    with torch.inference_mode():
        distance_table(*arguments)
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    table = distance_table(*arguments)
    (weight * table).sum().backward()
    assert weight.grad.equal(table.sum()) and weight.grad > 0
