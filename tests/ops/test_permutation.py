"""Compares powers of permutations with repeated composition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.ops.permutation import odd_even_permutation, permutation_powers, permute_features


def along_the_cycle(permutation, i, s):
    """Returns π^s(i), s steps along the cycle of i."""
    cycle = [i]
    while permutation[cycle[-1]] != i:
        cycle.append(permutation[cycle[-1]])
    return cycle[s % len(cycle)]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    heads=st.lists(st.permutations(range(6)), min_size=1, max_size=4),
    offset=st.integers(0, 10**6),
    length=st.integers(1, 20),
)
def test_powers_of_one_permutation_per_head(heads, offset, length):
    together = permutation_powers(torch.tensor(heads), offset, length)
    assert together.shape == (len(heads), length, 6)
    for h, permutation in enumerate(heads):
        expected = [
            [along_the_cycle(permutation, i, s) for i in range(6)] for s in range(offset, offset + length)
        ]
        assert together[h].tolist() == expected
        assert permutation_powers(torch.tensor(permutation), offset, length).tolist() == expected


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)], ids=str)
def test_permute_features_matches_gather(shape):
    index = torch.rand(shape).argsort(-1)
    x = randn(2, 2, 3, 5).requires_grad_()
    found, expected = permute_features(x, index), x.gather(-1, index.expand_as(x))
    assert found.equal(expected)
    assert_same(with_gradients(found**3, [x]), with_gradients(expected**3, [x]), 1e-12)


@pytest.mark.parametrize("e", [1, 2, 7, 8, 64])
def test_odd_even_matches_pseudocode_of_the_paper(e):
    d = e - e // 2
    permutation, index = torch.arange(e), torch.arange(e)
    permutation[::2] = index[::2] // 2
    permutation[1::2] = (index[1::2] - 1) // 2 + d
    assert odd_even_permutation(e).equal(permutation)
    assert sorted(odd_even_permutation(e).tolist()) == list(range(e))
