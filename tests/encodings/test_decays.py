"""Products that decay over far distances, and gradients beside a decay in half precision."""

import copy

import pytest
import torch

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.ops.decay import decayed_products


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.5, 40.0])
def test_decayed_products_stay_in_float32_range(rate, autocast):
    decay = -rate * torch.tensor([[1.0, 0.3, 0.0, 0.01]], dtype=torch.float64)
    q, k = torch.rand(1, 2, 100, 4, dtype=torch.float64), torch.rand(1, 2, 3000, 4, dtype=torch.float64)
    distance = torch.arange(2900, 3000)[:, None] - torch.arange(3000)
    weights = torch.exp(decay[0] * distance[..., None].clamp(min=0))
    expected = torch.einsum("bhid,bhjd,ijd->bhij", q, k, weights).tril(2900)
    with torch.autocast("cpu", enabled=autocast):
        found = decayed_products(decay, q.float(), k.float())(q.float(), k.float(), 2900)
    assert found.isfinite().all()
    torch.testing.assert_close(found.tril(2900).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("attention", [LinearAttention, SoftmaxAttention])
def test_gradient_of_angles_beside_a_decay_in_half_precision(attention, dtype):
    """It is a difference of large terms: rounding the gradients of q and k makes it noise."""
    options = {"linear_norm": "layernorm"} if attention is LinearAttention else {}
    half = attention(16, 2, "lrpe_decay", causal=True, layers=2, **options).to(dtype)
    exact, gradients = copy.deepcopy(half).double(), []
    x, outer = torch.randn(2, 500, 16).to(dtype), torch.randn(2, 500, 16).to(dtype)
    for module in (half, exact):
        like = module.q_proj.weight
        out = module(x.to(like))
        assert out.dtype == like.dtype
        gradients += torch.autograd.grad(out, module.encoding.theta, outer.to(like))
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error < 4 * torch.finfo(dtype).eps
