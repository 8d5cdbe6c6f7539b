"""Names of torch that are not public: where they are used, and that they mean what the core assumes."""

import re

import pytest
import torch
from support.tiny import PLUGIN
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from fairseq_lrpe.ops import torch_internals
from fairseq_lrpe.ops.torch_internals import (
    assert_in_kernel,
    has_dispatch_mode,
    is_batched_gradient,
    is_in_transform,
    mark_constant,
    outside_modes,
    without_dispatch_modes,
)

CORE = ("ops", "encodings", "positions", "attention")
PRIVATE = re.compile(r"\b(?:torch|forward_ad|functorch)(?:\.\w+)*\._[A-Za-z]|\b_dynamo_\w+")


def test_one_module_uses_private_names():
    lines = [
        f"{path.relative_to(PLUGIN)}: {line.strip()}"
        for part in CORE
        for path in (PLUGIN / part).rglob("*.py")
        if path.name != "torch_internals.py"
        for line in path.read_text().splitlines()
        if PRIVATE.search(line) and "hasattr" not in line
    ]
    assert lines == []


def test_transforms():
    answers = []

    def function(x):
        answers.append(is_in_transform())
        with outside_modes():  # vmap refuses random numbers
            assert torch.rand(2).shape == (2,)
        return x.sum()

    x = torch.ones(2, 3)
    function(x)
    torch.func.grad(function)(x)
    torch.func.vmap(function)(x)
    with forward_ad.dual_level():
        function(x)
    function(x)
    assert answers == [False, True, True, True, False]
    with pytest.raises(RuntimeError, match="random"):
        torch.func.vmap(lambda x: x + torch.rand(2))(x[:, :2])


@pytest.mark.parametrize("batched", [False, True])
def test_batched_gradients(batched):
    answers = []

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            answers.append(is_batched_gradient(g))
            return g

    x = torch.ones(3, requires_grad=True)
    gradients = torch.eye(3) if batched else torch.ones(3)
    torch.autograd.grad(Identity.apply(x), x, gradients, is_grads_batched=batched)
    assert answers == [batched]


def test_dispatch_modes():
    assert not has_dispatch_mode()
    with FakeTensorMode():
        assert has_dispatch_mode()
        with without_dispatch_modes():
            assert not has_dispatch_mode() and type(torch.ones(1)) is torch.Tensor
    with torch.inference_mode(), outside_modes():
        assert not torch.ones(1).is_inference()
    with torch.device("meta"), outside_modes():
        assert not torch.ones(1).is_meta


def test_constant_results_are_not_traced():
    calls = []

    @mark_constant
    def length():
        calls.append(1)
        return 3

    program = torch.compile(lambda x: x * length(), backend="eager", fullgraph=True)
    for _ in range(3):
        assert program(torch.ones(1)).item() == 3
    assert len(calls) == 1


def test_assertions():
    assert_in_kernel(torch.tensor(True), "holds")
    with pytest.raises(RuntimeError, match="does not hold"):
        assert_in_kernel(torch.tensor(False), "does not hold")


def test_all_functions_are_tested():
    defined = [x for x in vars(torch_internals).values() if callable(x)]
    names = {x.__name__ for x in defined if x.__module__ == torch_internals.__name__}
    assert names <= set(globals())
