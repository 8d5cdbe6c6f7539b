"""Log decays that are positive or below e^-100, against the definition with one weight for each pair."""

import itertools

import pytest
import torch
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.decay import block_products, gated_products

B, H, L, D = 2, 2, 75, 4
SHAPES = [(H,), (H, 1), (H, D), (1, D), (B, H, L), (B, H, L, D)]


def exponents(log_decay, length=L):
    """Returns the logarithm of the weight of each pair and feature, (B or 1, H or 1, L, L, 1 or d)."""
    if log_decay.dim() == 1:
        log_decay = log_decay[:, None]
    if log_decay.dim() == 2:
        distance = torch.arange(length)[:, None] - torch.arange(length)
        return log_decay[None, :, None, None] * distance[..., None]
    log_decay = log_decay[..., None] if log_decay.dim() == 3 else log_decay
    sums = log_decay.cumsum(2)
    return sums[:, :, :, None] - sums[:, :, None]


def definition(q, k, v, log_decay):
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    weights = exponents(log_decay).masked_fill(later[..., None], -torch.inf).exp().expand(B, H, L, L, D)
    scores = torch.einsum("bhid,bhjd,bhijd->bhij", q, k, weights)
    return scores @ v / scores.sum(-1, keepdim=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("signs", ["positive", "mixed", "strong"])
def test_positive_log_decays(shape, signs):
    """The result does not depend on the chunk size, nor on splitting strong decays of features."""
    log_decay = {"positive": 0.05, "mixed": 0.5, "strong": 3.0}[signs] * randn(*shape)
    if signs == "positive":
        log_decay = log_decay.abs()
    elif len(shape) < 3:  # constant decays add up over distances
        log_decay = log_decay / 20
    q, k, v = ((randn(B, H, L, D, seed=n).abs() + 0.1).requires_grad_() for n in range(3))
    leaves = q, k, v, log_decay.requires_grad_()
    expected = with_gradients(definition(*leaves), leaves)
    options = {"causal": True, "normalize": True, "log_decay": log_decay}
    for backend, size in [("reference", None), *itertools.product(["chunk"], [None, 1, 7, 64])]:
        found = linear_attention(q, k, v, **options, backend=backend, chunk_size=size)
        assert_same(with_gradients(found, leaves), expected)
    parts, state = [], None
    for rows in (slice(0, 40), slice(40, 41), slice(41, L)):
        own = log_decay[:, :, rows] if log_decay.dim() > 2 else log_decay
        given = {**options, "log_decay": own, "state": state, "return_state": True}
        out, state = linear_attention(q[:, :, rows], k[:, :, rows], v[:, :, rows], **given)
        parts.append(out)
    assert_same(torch.cat(parts, dim=2), expected[0])


def test_products_with_positive_log_decays():
    """In softmax attention, a block is split for strong decays."""
    for scale in (0.1, 3.0):
        log_decay, q, k = scale * randn(B, H, L, D), randn(B, H, L, D, seed=1), randn(B, H, L, D, seed=2)
        weights = exponents(log_decay).exp()
        expected = torch.einsum("bhid,bhjd,bhijd->bhij", q, k, weights).tril()
        found = gated_products(log_decay)(q, k, 0).tril()
        size = expected.abs().amax((1, 2, 3), keepdim=True)
        assert_same(found / size, expected / size)


@pytest.mark.parametrize("length", [16, 63, 64])
def test_weak_decays_need_one_product(length):
    """Weights relative to the middle of a block fit float32 for twice the decay that those of an end do."""
    sums = torch.linspace(0, -60, length)[:, None]
    [(mask, of_queries, of_keys)] = block_products(sums)
    expected = (sums - sums.mT).exp().tril()
    assert_same(mask * (of_queries @ of_keys.mT), expected, 1e-4)
