"""Log decays that are positive or below e^-100, against the definition with one weight for each pair."""

import itertools

import pytest
import torch
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention import LinearAttention
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.decay import gated_products
from fairseq_lrpe.ops.linear_attention.exponential import exp_features, scaled_attention

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


@pytest.mark.parametrize("shape", [None, *SHAPES], ids=str)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_feature_map_exp_with_strong_decays(shape, scale):
    """A decay below e^-100, or 0, is outweighed by keys whose exponents are larger by more than 100."""
    q, k, v = scale * randn(B, H, L, D), scale * randn(B, H, L, D, seed=1), randn(B, H, L, D, seed=2)
    log_decay = None if shape is None else -scale * randn(*shape, seed=3).abs()
    if log_decay is not None and len(shape) > 2:
        log_decay = log_decay.masked_fill(randn(*shape, seed=4) > 1.5, -1e5)
    pairs = q[:, :, :, None] + k[:, :, None] + (0 if log_decay is None else exponents(log_decay))
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    expected = pairs.logsumexp(-1).masked_fill(later, -torch.inf).softmax(-1) @ v
    if log_decay is not None and len(shape) > 2:
        log_decay = log_decay.masked_fill(log_decay == -1e5, -torch.inf)
    f = exp_features(q, k, causal=True, per_feature=True, log_decay=log_decay)
    out, _ = scaled_attention(f.q, f.k, torch.cat([v, torch.ones_like(v[..., :1])], -1), f.levels, True, None)
    assert_same(out[..., :-1] / out[..., -1:], expected)


@pytest.mark.parametrize("name", ["fox", "gla"])
def test_closed_gates_of_a_module_with_the_feature_map_exp(name):
    """Keys before a closed gate keep weights if their exponents are larger by more than its logarithm."""
    module = LinearAttention(4, 1, name, causal=True, feature_map="exp").double()
    last = module.encoding.gate if name == "fox" else module.encoding.w_out
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for projection in (module.v_proj, module.out_proj):
            projection.weight.copy_(torch.eye(4))
        module.k_proj.weight.copy_(torch.eye(4) * 700)
        last.bias.fill_(-300 if name == "fox" else -300 * 16)  # the logarithm of the gate
    x = torch.zeros(1, 2, 4, dtype=torch.float64)
    x[0, 0] = torch.tensor(
        [0.43, 0.44, 0.42, 0.43]
    )  # exponents of about 300 at the first key, 0 at the second
    weight = torch.exp(700 * x[0, 0] - 300).sum()
    assert_same(module(x)[0, 1], weight / (weight + 4) * x[0, 0])
