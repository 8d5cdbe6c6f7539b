"""Second derivatives, and transforms of torch.func, of the functions with hand-written backward passes."""

import itertools
from importlib import import_module

import pytest
import torch
from support.pairwise_scores import all_scores
from support.tensors import assert_same, randn
from torch.func import grad, hessian, jvp, vmap

from fairseq_lrpe.encodings.cope import CoPE
from fairseq_lrpe.encodings.liere import _MatrixExponential
from fairseq_lrpe.ops import FEATURE_MAPS, linear_attention
from fairseq_lrpe.ops.autograd import KeepLayout, apply
from fairseq_lrpe.ops.linear.fla import _FirstOrder
from fairseq_lrpe.ops.permutation import permute_features
from fairseq_lrpe.ops.relative import relative_shift
from fairseq_lrpe.ops.rotation import complex_features

CHUNK_MODULE = import_module("fairseq_lrpe.ops.linear.chunk")
PERMUTATION = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(s)) for s in range(3)])


COPE = CoPE(num_heads=1, head_dim=4, causal=True, positions=3).double()
COPE.embeddings.data = randn(3, 4, seed=1)


def cope(x):
    return all_scores(COPE, x, x.cos()).tril()


def attention(**options):
    return lambda x: linear_attention(
        x.exp(), x.cos().exp(), x, normalize=True, chunk_size=2, backend="chunk", **options
    )


def decaying(decay):
    """The decay, and all other inputs, depend on x."""

    def function(x):
        state = x.mT @ x, x.exp().sum(2)
        return attention(causal=True, log_decay=-decay(x.exp()), state=state)(x)

    return function


FUNCTIONS = {
    "elu": FEATURE_MAPS["elu"],
    "complex_features": lambda x: complex_features(x, torch.complex(x[0, 0].cos(), x[0, 0].sin())),
    "relative_shift": lambda x: relative_shift(x, 2),
    "permute_features": lambda x: permute_features(x, PERMUTATION),
    "matrix_exp": lambda x: apply(_MatrixExponential, x @ x.mT),
    "keep_layout": lambda x: apply(KeepLayout, x.sin()),
    "cope": cope,
    "bidirectional": attention(causal=False),
    "causal": attention(causal=True),
    "decay of heads": decaying(lambda x: x[0, :, 0, 0]),
    "decay of features": decaying(lambda x: x[0, :, 0]),
    "gates": decaying(lambda x: x[..., 0]),
    "gates of features": decaying(lambda x: x),
}
every = pytest.mark.parametrize("name", FUNCTIONS)


@every
def test_second_derivatives(name):
    x = randn(1, 1, 3, 4).requires_grad_()
    assert torch.autograd.gradgradcheck(FUNCTIONS[name], (x,), check_batched_grad=True)


@pytest.mark.parametrize("of_gpus", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("used", ["out", "state", "both"])
def test_second_derivatives_of_parts_of_linear_attention(causal, of_gpus, used, monkeypatch):
    """Only some of q, k and v need gradients, and only the output or only the state is used."""
    monkeypatch.setattr(CHUNK_MODULE, "_uses_all_chunks", lambda q: of_gpus)

    def derivatives(needed, **options):
        inputs = [randn(1, 2, 5, 3, seed=i).exp().requires_grad_(i in needed) for i in range(3)]
        out, state = as_pair(linear_attention(*inputs, causal=causal, normalize=True, **options))
        parts = {"out": [out], "state": state, "both": [out, *state]}[used]
        leaves = [inputs[i] for i in needed]
        loss = sum(part.sin().sum() for part in parts) + sum(x.sum() for x in leaves)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = sum(g.square().sum() for g in first) + sum(x.sum() for x in leaves)
        return *first, *torch.autograd.grad(second, leaves)

    return_state = used != "out"
    subsets = itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3))
    for needed in subsets:
        found = derivatives(needed, return_state=return_state, chunk_size=2, backend="chunk")
        assert_same(found, derivatives(needed, return_state=return_state, backend="reference"))


def as_pair(result):
    return result if isinstance(result, tuple) else (result, ())


@every
def test_transforms_of_torch_func(name):
    def loss(x):
        return (FUNCTIONS[name](x) ** 2).sum()

    x, direction = randn(2, 1, 1, 3, 4), randn(1, 1, 3, 4, seed=1)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(sum(loss(row) for row in leaf), leaf)
    assert_same(vmap(grad(loss))(x), expected)
    assert_same(jvp(loss, (x[0],), (direction,))[1], (expected[0] * direction).sum())
    assert_same(hessian(loss)(x[0]), torch.autograd.functional.hessian(loss, x[0]), 1e-8)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
def test_gradients_keep_the_layout(order):
    x = randn(2, 3, 4, 5).permute(order).requires_grad_()
    strides, weights = [], randn(*x.shape, seed=1)
    y = apply(KeepLayout, x * 1)
    y.grad_fn.next_functions[0][0].register_prehook(lambda g: strides.append(g[0].stride()))
    assert_same(torch.autograd.grad((y * weights).sum(), x)[0], weights)
    assert strides == [y.stride()]


def test_kernels_without_second_derivatives_raise():
    x = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(_FirstOrder.apply(x).square().sum(), x)
    assert gradient.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="use backend 'chunk'"):
        torch.autograd.grad(_FirstOrder.apply(x).square().sum(), x, create_graph=True)
