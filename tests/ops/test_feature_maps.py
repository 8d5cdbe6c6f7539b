"""Feature maps against their formulas."""

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
@given(values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20))
def test_never_negative(name, dtype, values):
    out = FEATURE_MAPS[name](torch.tensor(values, dtype=torch.float64).to(dtype))
    assert out.dtype == dtype
    assert (out >= 0).all()
