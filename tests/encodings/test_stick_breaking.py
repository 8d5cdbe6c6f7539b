"""Compares stick-breaking attention with loops over the paper's formula, and with flash-linear-attention."""

import copy
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.pairwise_scores import D, H, all_scores, random_encoding
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.attention.weights import attention_weights

B = 2
E = H * D


def attention():
    module = FairseqSoftmaxAttention(random_encoding("stick_breaking"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module.double().eval()


def projected(module, x):
    """Returns q, k and v (n, H, d) of a sentence (n, E)."""
    return [p(x).unflatten(-1, (H, D)) for p in (module.q_proj, module.k_proj, module.v_proj)]


def definition(module, x, rows=None, window=99):
    """Computes attention of a sentence (n, E) without padding, for all queries or those of ``rows``."""
    q, k, v = projected(module, x)
    outputs = []
    for i in range(len(x)) if rows is None else rows:
        heads = []
        for h in range(H):
            out, rest = torch.zeros(D, dtype=x.dtype), torch.ones((), dtype=x.dtype)
            for j in reversed(range(max(0, i + 1 - window), i)):
                share = (q[i, h] @ k[j, h] / D**0.5).sigmoid()
                out, rest = out + share * rest * v[j, h], rest * (1 - share)
            heads.append(out)
        outputs.append(module.out_proj(torch.cat(heads)))
    return torch.stack(outputs)


@pytest.mark.parametrize("span", [(0, 11), (4, 11), (0, 7), (2, 9)])
def test_attention_and_gradients_match_definition(span):
    """With arbitrary inputs at padding."""
    module, x = attention(), randn(11, B, E).requires_grad_()
    padding = torch.ones(B, 11, dtype=torch.bool)
    padding[:, slice(*span)] = False
    out, _ = module(x, key_padding_mask=padding if padding.any() else None)
    expected = torch.stack([definition(module, x[slice(*span), b]) for b in range(B)], dim=1)
    leaves = [x, *module.parameters()]
    results = [with_gradients(o, leaves) for o in (out[slice(*span)], expected)]
    assert_same(*results)


def test_blocks_and_window_match_definition():
    """In blocks of 150 queries, with 19 keys before a query."""
    module, x = attention(), randn(300, 1, E).requires_grad_()
    module.window, rows = 20, [0, 1, 25, 149, 150, 299]
    out = module(x)[0][rows, 0]
    expected = definition(module, x[:, 0], rows, window=20)
    assert_same(with_gradients(out, [x]), with_gradients(expected, [x]))


def test_first_query_has_no_weights():
    module, x = attention(), randn(5, B, E)
    assert_same(module(x)[0][0], module.out_proj.bias.expand(B, E))
    q, k = randn(1, H, 5, D), randn(1, H, 5, D, seed=1)
    weights = attention_weights(module, q, k)
    assert_same(weights.diagonal(dim1=-2, dim2=-1), torch.zeros(1, H, 5).double())
    assert (weights.sum(-1) < 1).all() and not weights[:, :, 0].any() and weights[:, :, 1:].any(-1).all()


@pytest.mark.skipif(not find_spec("fla"), reason="needs flash-linear-attention")
def test_flash_linear_attention():
    """The file of its naive function is run alone, because importing the package takes seconds."""
    path = Path(find_spec("fla").submodule_search_locations[0], "ops/stickbreaking_attn/naive.py")
    naive = runpy.run_path(str(path))["naive_stickbreaking_attn"]
    module, x = attention(), randn(B, 9, E).requires_grad_()
    q, k, v = (p(x).unflatten(-1, (H, D)) for p in (module.q_proj, module.k_proj, module.v_proj))
    expected = module.out_proj(naive(q, k, v)[0].flatten(2))
    leaves = [x, *module.parameters()]
    found = module(x.transpose(0, 1))[0].transpose(0, 1)
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dtype):
    """Hundreds of logarithms are summed. Excluded keys are left out, because their score is far larger."""
    encoding = random_encoding("stick_breaking")
    q, k = randn(1, H, 1, D, seed=1).to(dtype), randn(1, H, 400, D, seed=2).to(dtype)
    found = all_scores(copy.deepcopy(encoding).to(dtype), q, k, 399)[..., :399]
    assert found.dtype == dtype
    exact = all_scores(encoding, q.double(), k.double(), 399)[..., :399]
    assert (found - exact).norm() / exact.norm() < 2 * torch.finfo(dtype).eps


def test_large_scores():
    """Shares of 0 and 1 give finite gradients."""
    module, x = attention(), 100 * randn(9, 1, E).requires_grad_()
    out = module(x)[0]
    assert_same(out[:, 0], definition(module, x[:, 0]))
    assert torch.autograd.grad(out.sum(), module.q_proj.weight)[0].isfinite().all()
