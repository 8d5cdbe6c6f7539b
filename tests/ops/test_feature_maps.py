"""Compares feature maps with their formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lrpe.ops import FEATURE_MAPS

FORMULAS = {
    "elu": lambda x: x + 1 if x > 0 else math.exp(x),
    "relu": lambda x: max(x, 0.0),
    "exp": math.exp,
    "softplus": lambda x: math.log(1 + math.exp(x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


def test_every_map_has_a_formula():
    assert set(FEATURE_MAPS) == set(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name):
    points = torch.cat([torch.linspace(-6, 6, 41), torch.tensor([1e-9, -1e-9])]).double()
    expected = torch.tensor([FORMULAS[name](x) for x in points.tolist()], dtype=torch.float64)
    torch.testing.assert_close(FEATURE_MAPS[name](points), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(values=st.lists(st.floats(-1e4, 1e4, allow_subnormal=False), min_size=1, max_size=20))
def test_never_negative(name, dtype, values):  # importing attention makes a CPU flush subnormal numbers to 0
    out = FEATURE_MAPS[name](torch.tensor(values, dtype=torch.float64).to(dtype))
    assert out.dtype == dtype
    assert (out >= 0).all()


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients(name):
    x = torch.tensor([-30.0, -2.0, -1e-3, 1e-3, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(FEATURE_MAPS[name], (x,))
    assert torch.autograd.gradgradcheck(FEATURE_MAPS[name], (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_elu_is_precise_for_small_values(dtype, autocast):
    x = torch.linspace(-9, 2, 200).to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = FEATURE_MAPS["elu"](x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    exact = x.detach().double()
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 0}
    expected = torch.where(exact > 0, 1 + exact, exact.exp())
    assert y.dtype == gradient.dtype == dtype
    torch.testing.assert_close(y.detach().double(), expected, **tolerance)
    torch.testing.assert_close(gradient.double(), expected.clamp(max=1), **tolerance)


def test_elu_stores_only_its_output():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        y = FEATURE_MAPS["elu"](torch.randn(10, requires_grad=True))
    assert [x.data_ptr() for x in kept] == [y.data_ptr()]
