"""Compares the four methods of Huang et al. with their formulas, pair by pair."""

import math

import pytest
import torch
from pairwise_scores import SHAPES, D, H, all_scores, check_scores, random_encoding
from tensor_sizes import TensorSizes
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding

METHODS = (1, 2, 3, 4)
every_method = pytest.mark.parametrize("method", METHODS)


def huang(farthest=None):
    """Returns the formula, with distances above ``farthest`` replaced by it."""

    def score(encoding, q, k, i, j, h):
        x = i - j if farthest is None else min(i - j, farthest)
        x = max(-encoding.k, min(encoding.k, x))
        if encoding.method == 1:
            total = (q * k).sum(-1) * encoding.a[abs(x), 0]
        elif encoding.method == 2:
            total = (q * k).sum(-1) * encoding.a[encoding.k + x, 0]
        elif encoding.method == 3:
            total = sum(q[:, t] * k[:, t] * encoding.a[encoding.k + x, t] for t in range(D))
        else:
            a = encoding.a[encoding.k + x]
            total = ((q + a) * (k + a)).sum(-1) - (a * a).sum()
        return total / math.sqrt(D)

    return score


@every_method
@pytest.mark.parametrize("k", [1, 2, 3, 20])
@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
def test_scores_and_gradients_match_paper(method, k, causal, queries, keys, q_offset):
    check_scores(huang(), random_encoding("huang", causal, method=method, k=k), queries, keys, q_offset)


@every_method
@pytest.mark.parametrize("farthest", [1, 2, 4])
@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
def test_clamp_length(method, farthest, causal, queries, keys, q_offset):
    encoding = random_encoding("huang", causal, method=method, k=3)
    encoding.clamp_length = farthest
    check_scores(huang(farthest), encoding, queries, keys, q_offset)


@pytest.mark.parametrize("causal", [True, False])
def test_methods_1_and_2_differ_only_after_the_query(causal):
    first, second = (random_encoding("huang", causal, method=n, k=3) for n in (1, 2))
    with torch.no_grad():
        first.a.copy_(second.a[3:])
    q, k = randn(2, H, 9, D, seed=1), randn(2, H, 9, D, seed=2)
    before = torch.ones(9, 9, dtype=torch.bool).tril()
    found, expected = all_scores(first, q, k), all_scores(second, q, k)
    assert_same(found[..., before], expected[..., before])
    assert causal or not torch.allclose(found, expected)


@every_method
def test_parameters(method):
    """Methods 1 to 3 start as attention without positions."""
    encoding = build_encoding("huang", num_heads=H, head_dim=D, causal=False, k=5, method=method)
    shape = {1: (6, 1), 2: (11, 1), 3: (11, D), 4: (11, D)}[method]
    assert {n: tuple(x.shape) for n, x in encoding.named_parameters()} == {"a": shape}
    q, k = randn(2, H, 9, D, seed=1), randn(2, H, 9, D, seed=2)
    found, plain = all_scores(encoding.double(), q, k), q @ k.mT / math.sqrt(D)
    if method == 4:
        assert not torch.allclose(found, plain) and encoding.a.abs().max() < 1
    else:
        assert_same(found, plain)


@every_method
@pytest.mark.parametrize("causal", [True, False])
def test_memory_is_bounded_by_the_scores(method, causal):
    """No tensor has an entry for each query, key and feature."""
    encoding = random_encoding("huang", causal, method=method, k=16)
    leaves = [randn(2, H, 256, D, seed=s).requires_grad_() for s in (1, 2)]
    with TensorSizes() as sizes:
        all_scores(encoding, *leaves).sum().backward()
    assert sizes.largest <= 2 * H * 256 * 256


@pytest.mark.parametrize("options", [{"k": 0}, {"k": -1}, {"method": 0}, {"method": 5}], ids=str)
def test_invalid_arguments_are_rejected(options):
    k, method = options.get("k", 16), options.get("method", 4)
    message = f"^huang needs .* k of at least 1 and a method from 1 to 4, not k {k} and method {method}$"
    with pytest.raises(ValueError, match=message):
        random_encoding("huang", **options)
