"""Compares KERPLE's logarithmic bias with its formula, pair by pair."""

import math

import pytest
import torch
from pairwise_scores import SHAPES, D, H, check_scores, random_encoding
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding


def kerple(encoding, q, k, i, j, h):
    """−r₁ log(1 + r₂ |i−j|), both at least 0.01."""
    r1, r2 = (x[h] if x[h] > 0.01 else 0.01 + 0 * x[h] for x in (encoding.bias_p, encoding.bias_a))
    return (q * k).sum(-1) / math.sqrt(D) - r1 * torch.log(1 + r2 * abs(i - j))


@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1)], ids=str)
def test_scores_and_gradients_match_formula(signs, causal, queries, keys, q_offset):
    """A negative parameter of the second head acts as 0.01."""
    encoding = random_encoding("kerple", causal)
    with torch.no_grad():
        for parameter, sign in zip(encoding.parameters(), signs, strict=True):
            parameter.abs_().add_(0.1)
            parameter[1] *= sign
    check_scores(kerple, encoding, queries, keys, q_offset)


def test_clamped_parameters_get_no_gradient():
    encoding = random_encoding("kerple")
    with torch.no_grad():
        encoding.bias_p.copy_(torch.tensor([0.5, -0.5]))
        encoding.bias_a.copy_(torch.tensor([0.5, 0.5]))
    q = randn(1, H, 5, D)
    encoding.bias(q, q).sum().backward()
    assert encoding.bias_p.grad[0] < 0 and encoding.bias_p.grad[1] == 0
    assert encoding.bias_a.grad.lt(0).all()


def test_initialization():
    """Uniform in (0, 2) and (0, 1), one value per head, and none below 0.01."""
    encoding = build_encoding("kerple", num_heads=1000, head_dim=D, causal=True)
    assert {n: tuple(x.shape) for n, x in encoding.named_parameters()} == {
        "bias_p": (1000,),
        "bias_a": (1000,),
    }
    for parameter, most in ((encoding.bias_p, 2), (encoding.bias_a, 1)):
        assert 0.01 <= parameter.min() < 0.05 and 0.95 * most < parameter.max() <= most
        assert abs(parameter.mean() / most - 0.5) < 0.05


def test_clamp_length():
    encoding = random_encoding("kerple")
    q, k = randn(1, H, 2, D), randn(1, H, 12, D)
    whole = encoding.bias(q, k, 10)[0, :, 1]
    encoding.clamp_length = 4
    clamped = encoding.bias(q, k, 10)[0, :, 1]
    assert_same(clamped[:, -5:], whole[:, -5:])
    assert_same(clamped[:, :7], whole[:, 7:8].expand(-1, 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_far_distances_in_half_precision(dtype):
    """Above 65,504, the maximum of float16: only the result is rounded."""
    encoding = random_encoding("kerple").to(dtype)
    q, k = torch.zeros(1, H, 1, D, dtype=dtype), torch.zeros(1, H, 100_001, D, dtype=dtype)
    bias = encoding.bias(q, k, 100_000)
    assert bias.dtype == dtype
    expected = encoding.double().bias(q.double(), k.double(), 100_000)
    torch.testing.assert_close(bias.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)
