"""Compares powers of permutations with repeated composition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from fairseq_lrpe.ops.permutation import odd_even_permutation, permutation_powers, permute_features

quick = settings(max_examples=50, deadline=None, derandomize=True)


def along_the_cycle(permutation, i, s):
    """Returns π^s(i), s steps along the cycle of i."""
    cycle = [i]
    while permutation[cycle[-1]] != i:
        cycle.append(permutation[cycle[-1]])
    return cycle[s % len(cycle)]


@quick
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
def test_gradients_of_permute_features(shape):
    index = torch.rand(shape, generator=torch.Generator().manual_seed(0)).argsort(-1)
    x = torch.randn(2, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(x.shape, dtype=torch.float64)

    def function(x):
        return (permute_features(x, index) * w) ** 3

    assert gradcheck(function, (x,))
    assert gradgradcheck(function, (x,))
    assert permute_features(x, index).equal(x.gather(-1, index.expand_as(x)))
    ours = torch.autograd.grad(function(x).sum(), x)
    gathered = torch.autograd.grad(((x.gather(-1, index.expand_as(x)) * w) ** 3).sum(), x)
    torch.testing.assert_close(ours, gathered, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("e", [1, 2, 3, 4, 7, 8, 63, 64])
def test_odd_even_matches_pseudocode_of_the_paper(e):
    d = e - e // 2
    permutation, index = torch.arange(e), torch.arange(e)
    permutation[::2] = index[::2] // 2
    permutation[1::2] = (index[1::2] - 1) // 2 + d
    assert odd_even_permutation(e).equal(permutation)
    assert sorted(odd_even_permutation(e).tolist()) == list(range(e))
