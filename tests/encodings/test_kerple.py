"""Compares KERPLE's biases with their formulas, pair by pair."""

import math

import pytest
import torch
from pairwise_scores import SHAPES, D, H, check_scores, random_encoding
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding

variants = pytest.mark.parametrize("power", [False, True], ids=["logarithm", "power"])


def kerple(encoding, q, k, i, j, h):
    """−r₁ log(1 + r₂ |i−j|) or −r₁ |i−j|^r₂, both at least 0.01, and the power at most 2."""
    p, a = (x[h] if x[h] > 0.01 else 0.01 + 0 * x[h] for x in (encoding.bias_p, encoding.bias_a))
    if encoding.power:
        p = p if p < 2 else 2 + 0 * p
        bias = -a * abs(i - j) ** p
    else:
        bias = -p * torch.log(1 + a * abs(i - j))
    return (q * k).sum(-1) / math.sqrt(D) + bias


@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1)], ids=str)
@variants
def test_scores_and_gradients_match_formula(power, signs, causal, queries, keys, q_offset):
    """A negative parameter of the second head acts as 0.01."""
    encoding = random_encoding("kerple", causal, power=power)
    with torch.no_grad():
        for parameter, sign in zip(encoding.parameters(), signs, strict=True):
            parameter.abs_().add_(0.1)
            parameter[1] *= sign
    check_scores(kerple, encoding, queries, keys, q_offset)


@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
def test_powers_above_2_act_as_2(causal, queries, keys, q_offset):
    encoding = random_encoding("kerple", causal, power=True)
    with torch.no_grad():
        encoding.bias_p.copy_(torch.tensor([1.5, 2.5]))
        encoding.bias_a.abs_()
    check_scores(kerple, encoding, queries, keys, q_offset)
    q = randn(1, H, 5, D)
    assert_same(encoding.bias(q, q, 5)[0, 1, 0, :5], -encoding.bias_a[1] * torch.arange(5, 0, -1) ** 2)


def test_clamped_parameters_get_no_gradient():
    encoding = random_encoding("kerple")
    with torch.no_grad():
        encoding.bias_p.copy_(torch.tensor([0.5, -0.5]))
        encoding.bias_a.copy_(torch.tensor([0.5, 0.5]))
    q = randn(1, H, 5, D)
    encoding.bias(q, q).sum().backward()
    assert encoding.bias_p.grad[0] < 0 and encoding.bias_p.grad[1] == 0
    assert encoding.bias_a.grad.lt(0).all()


@variants
def test_initialization(power):
    """Uniform in (0, 2) and (0, 1), one value per head, and none below 0.01."""
    encoding = build_encoding("kerple", num_heads=1000, head_dim=D, causal=True, power=power)
    assert {n: tuple(x.shape) for n, x in encoding.named_parameters()} == {
        "bias_p": (1000,),
        "bias_a": (1000,),
    }
    for parameter, most in ((encoding.bias_p, 2), (encoding.bias_a, 1)):
        assert 0.01 <= parameter.min() < 0.05 and 0.95 * most < parameter.max() <= most
        assert abs(parameter.mean() / most - 0.5) < 0.05


@variants
def test_clamp_length(power):
    encoding = random_encoding("kerple", power=power)
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


def test_largest_power_is_finite_in_float16():
    encoding = random_encoding("kerple", power=True).half()
    with torch.no_grad():
        encoding.bias_p.fill_(2.0)
        encoding.bias_a.fill_(1.0)
    q = torch.zeros(1, H, 1, D, dtype=torch.float16)
    bias = encoding.bias(q, q.expand(-1, -1, 100_001, -1), 100_000)
    assert bias.dtype == torch.float16 and bias.isfinite().all() and (bias[..., 0] < -30_000).all()
    assert bias[0, :, 0, -4:].tolist() == [[-9.0, -4.0, -1.0, 0.0]] * H
