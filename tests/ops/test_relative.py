"""Compares functions of relative distances with loops over indices."""

import itertools

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


def squares(r, a, b):
    return torch.stack([r, a * r * r + b], dim=-1)


@quick
@given(shift=st.booleans(), **sizes)
def test_matrices_match_loop(shift, queries, before, after, causal):
    keys = keys_of(queries, before, after, causal)
    rows, distinct = queries if shift else 1, len(distances(queries, keys, before, causal))
    x = torch.randn(2, rows, distinct, requires_grad=True)
    out = relative_shift(x, keys) if shift else expand_distances(x[:, 0], queries, keys)
    assert out.shape == (2, queries, keys) and torch.isfinite(out).all()
    assert not shift or out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    seen, visible = torch.zeros_like(x), torch.zeros(queries, keys)
    for i, j in itertools.product(range(queries), range(keys)):
        if not causal or j <= before + i:
            assert out[:, i, j].equal(x[:, i % rows, j - i + queries - 1])
            seen[:, i % rows, j - i + queries - 1] += 1
            visible[i, j] = 1
    assert torch.autograd.grad((out * visible).sum(), x)[0].equal(seen)


@quick
@given(**{**sizes, "queries": st.integers(1, 300), "before": st.integers(-300, 300)})
def test_table_contains_the_values_of_the_function(queries, before, after, causal):
    before = max(0, before) if causal else before  # queries may precede all keys
    keys = keys_of(queries, before, after, causal)
    expected = torch.tensor(distances(queries, keys, before, causal))
    arguments = (queries, keys, before, causal, torch.device("cpu"))
    values = torch.stack([expected, 3 * expected**2 - 2], dim=-1)
    assert distance_table(squares, (3, -2), *arguments).equal(values)
    assert distance_table(squares, (3, -2), *arguments, torch.float32).equal(values.float())


def test_one_cached_table_serves_many_lengths():
    calls = []

    def counted(r, factor):
        calls.append(factor)
        return factor * r

    for queries, offset, causal, factor in itertools.product((1, 20, 60), (0, 2), (True, False), (2, 3)):
        arguments = (queries, offset + queries, offset, causal, torch.device("cpu"))
        assert distance_table(counted, (factor,), *arguments)[0] == factor * (offset + queries - 1)
    assert calls == [2, 3]
