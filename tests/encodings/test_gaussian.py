"""Compares the Gaussian Transformer's bias with its formula, pair by pair."""

import math

import pytest
import torch
from pairwise_scores import SHAPES, D, H, check_scores, random_encoding
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding


def gaussian(encoding, q, k, i, j, h):
    """−|w d² + b| with w ≥ 0 and b ≤ 0."""
    w, b = encoding.w[0], encoding.b[0]
    w, b = w if w > 0 else -w, b if b < 0 else -b
    bias = w * (i - j) ** 2 + b
    return (q * k).sum(-1) / math.sqrt(D) - (bias if bias > 0 else -bias)


@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
@pytest.mark.parametrize(("w", "b"), [(0.3, -2.0), (0.3, 2.0), (-0.3, -2.0), (2.0, -0.1)])
def test_scores_and_gradients_match_formula(w, b, causal, queries, keys, q_offset):
    """With w = 0.3 and b = −2, w d² + b is negative up to distance 2. Signs of parameters are ignored."""
    encoding = random_encoding("gaussian", causal)
    with torch.no_grad():
        encoding.w.fill_(w)
        encoding.b.fill_(b)
    check_scores(gaussian, encoding, queries, keys, q_offset)


def test_weights_are_a_gaussian_of_the_distance():
    """Without b and with equal scores, the weights are a normal density with variance 1/(2w)."""
    encoding = random_encoding("gaussian", False)
    with torch.no_grad():
        encoding.w.fill_(0.005)
        encoding.b.zero_()
    q = torch.zeros(1, H, 1, D, dtype=torch.float64)
    weights = encoding.bias(q, q.expand(-1, -1, 401, -1), 200).softmax(-1)[0, 0, 0]
    normal = torch.distributions.Normal(torch.tensor(200.0, dtype=torch.float64), 10.0)
    assert_same(weights, normal.log_prob(torch.arange(401.0, dtype=torch.float64)).exp(), 1e-8)


def test_parameters():
    encoding = build_encoding("gaussian", num_heads=H, head_dim=D, causal=True)
    assert {n: x.tolist() for n, x in encoding.state_dict().items()} == {
        "w": [pytest.approx(0.01)],
        "b": [pytest.approx(-0.1)],
    }


def test_clamp_length():
    encoding = random_encoding("gaussian")
    q, k = randn(1, H, 1, D), randn(1, H, 12, D)
    whole = encoding.bias(q, k, 11)
    encoding.clamp_length = 4
    clamped = encoding.bias(q, k, 11)
    assert_same(clamped[..., -5:], whole[..., -5:])
    assert_same(clamped[..., :7], whole[..., 7:8].expand(-1, -1, -1, 7))


def test_far_distances_in_float16():
    """The bias of far keys is below the range of float16, but finite, and their weights are 0."""
    encoding = random_encoding("gaussian").half()
    q = torch.zeros(1, H, 1, D, dtype=torch.float16)
    bias = encoding.bias(q, q.expand(-1, -1, 100_001, -1), 100_000)
    assert bias.dtype == torch.float16 and bias.isfinite().all() and (bias[..., 0] < -30_000).all()
