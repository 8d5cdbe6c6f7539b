"""Compares feature maps with their formulas."""

import math

import pytest
import torch

from fairseq_lrpe.ops import FEATURE_MAPS, feature_maps

FORMULAS = {
    "elu": lambda x: x + 1 if x > 0 else math.exp(x),
    "relu": lambda x: max(x, 0.0),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "sigmoid": lambda x: math.exp(x) / (1 + math.exp(x)),
    "silu": lambda x: x * math.exp(x) / (1 + math.exp(x)),
    "identity": lambda x: x,
}
SIGNED = feature_maps.SIGNED_FEATURE_MAPS


def test_every_feature_map_is_tested():
    assert {*FORMULAS, "softmax"} == set(FEATURE_MAPS)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_and_gradients(name):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        points = torch.cat([torch.linspace(-6, 6, 41), torch.tensor([1e-9, -1e-9, -1e4])]).double().to(dtype)
        expected = torch.tensor([FORMULAS[name](x) for x in points.tolist()], dtype=torch.float64)
        out, tolerance = FEATURE_MAPS[name](points), 2 * torch.finfo(dtype).eps
        assert out.dtype == dtype and (out >= 0).all() == (name not in SIGNED)
        torch.testing.assert_close(out.double(), expected, rtol=max(tolerance, 1e-10), atol=tolerance)
    x = torch.tensor([-30.0, -2.0, -1e-3, 1e-3, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(FEATURE_MAPS[name], (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_softmax_is_over_the_features_of_each_head(dtype):
    generator = torch.Generator().manual_seed(1)
    x = (5 * torch.randn(2, 3, 5, 8, generator=generator, dtype=torch.float64)).to(dtype)
    exact = x.double().exp()
    expected = exact / exact.sum(-1, keepdim=True)
    out = FEATURE_MAPS["softmax"](x)
    assert out.dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=max(tolerance, 1e-10), atol=tolerance)
    assert torch.autograd.gradcheck(FEATURE_MAPS["softmax"], (x[0, 0].double().requires_grad_(),))


@pytest.mark.parametrize(
    "dtype, autocast", [(torch.float16, False), (torch.bfloat16, True), (torch.float32, True)]
)
def test_elu_is_precise_for_small_values_and_stores_only_its_output(dtype, autocast):
    kept, x = [], torch.linspace(-9, 2, 200).to(dtype).requires_grad_()
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x),
    ):
        y = FEATURE_MAPS["elu"](x)
    assert [x.data_ptr() for x in kept] == [y.data_ptr()]
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    exact = x.detach().double()
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 0}
    expected = torch.where(exact > 0, 1 + exact, exact.exp())
    assert y.dtype == gradient.dtype == dtype
    torch.testing.assert_close(y.detach().double(), expected, **tolerance)
    torch.testing.assert_close(gradient.double(), expected.clamp(max=1), **tolerance)
