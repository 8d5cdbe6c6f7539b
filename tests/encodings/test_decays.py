"""Compares ALiBi, xPos, RetNet's encoding and LRPE-d with their formulas, pair by pair."""

import copy
import math

import pytest
import torch
from tensors import assert_same

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.ops import linear_attention
from fairseq_lrpe.ops.decay import decayed_products

H, D, L, LAYER, LAYERS = 3, 6, 13, 2, 5


def rotated(q, k, distance, theta):
    """Returns a list of the products of feature pairs of q and k, rotated by the distance."""
    pairs = []
    for t, angle in enumerate(theta):
        a, b = (x[:, 2 * t : 2 * t + 2].unbind(-1) for x in (q, k))
        cos, sin = math.cos(angle * distance), math.sin(angle * distance)
        pairs.append((a[0] * b[0] + a[1] * b[1]) * cos + (a[0] * b[1] - a[1] * b[0]) * sin)
    return pairs


LADDER = [10000 ** (-2 * t / D) for t in range(D // 2)]
ZETA = [(t / (D // 2) + 0.4) / 1.4 for t in range(D // 2)]


def alibi(q, k, distance, head, encoding):
    return (q * k).sum(-1), -(2 ** (-8 * (head + 1) / H)) * distance


def xpos(q, k, distance, head, encoding):
    decay = [zeta ** (distance / encoding.scale_base) for zeta in ZETA]
    return sum(f * x for f, x in zip(decay, rotated(q, k, distance, LADDER), strict=True)), 0


def retnet(q, k, distance, head, encoding):
    return sum(rotated(q, k, distance, LADDER)), distance * math.log(1 - 2 ** (-5 - head))


def lrpe_decay(q, k, distance, head, encoding):
    product = (q * k * torch.cos(encoding.theta * distance)).sum(-1)
    return product, -8 * (head + 1) / H * (1 - LAYER / LAYERS) * distance


FORMULAS = {
    "alibi": (alibi, {}),
    "xpos": (xpos, {}),
    "xpos_512": (xpos, {"scale_base": 512}),
    "retnet": (retnet, {}),
    "lrpe_decay": (lrpe_decay, {}),
}
every_formula = pytest.mark.parametrize("name", FORMULAS)


def build(name):
    options = {"num_heads": H, "head_dim": D, "causal": True, "layer": LAYER, "layers": LAYERS}
    encoding = build_encoding(name.removesuffix("_512"), **options, **FORMULAS[name][1]).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return encoding


def draw(start=0):
    """Returns q of the tokens from ``start`` on, and k of all tokens."""
    q, k = torch.rand(2, H, L - start, D), torch.rand(2, H, L, D)
    return q.double().requires_grad_(), k.double().requires_grad_()


def by_pairs(name, encoding, q, k):
    """Returns the formula's products and the term added to scores, (B, H, Lq, L), 0 at later keys."""
    formula, start = FORMULAS[name][0], L - q.size(2)
    products, added = (torch.zeros(2, H, L - start, L, dtype=torch.float64) for _ in range(2))
    for h in range(H):
        for i in range(start, L):
            for j in range(i + 1):
                found = formula(q[:, h, i - start], k[:, h, j], i - j, h, encoding)
                products[:, h, i - start, j], added[:, h, i - start, j] = found
    return products, added


def gradients(encoding, out, *inputs):
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return torch.autograd.grad((out * weights).sum(), [*inputs, *encoding.parameters()])


@pytest.mark.parametrize("layer", [1, 2])
def test_lrpe_decay_in_the_first_layer(layer):
    """Layer 1 rotates by own angles for each head, and the other layers only decay."""
    options = {"num_heads": H, "head_dim": D, "causal": True, "layer": layer, "layers": LAYERS}
    encoding, (q, k) = build_encoding("lrpe_decay", first_layer=True, **options).double(), draw()
    angles = encoding.theta if layer == 1 else torch.zeros(H, D, dtype=torch.float64)
    assert len([*encoding.parameters()]) == (layer == 1)
    if layer == 1:
        expected = [10000 ** (-2 * n / (H * D)) for n in range(H * D)]
        torch.testing.assert_close(angles.flatten().tolist(), expected, rtol=1e-6, atol=0)
    distance = torch.arange(L)[:, None] - torch.arange(L)
    cosines = torch.cos(angles[:, None, None] * distance[..., None])
    encoded_q, encoded_k = encoding(q, k)
    results = []
    for products in (encoded_q @ encoded_k.mT, torch.einsum("bhid,bhjd,hijd->bhij", q, k, cosines)):
        results.append((products, *gradients(encoding, products, q, k)))
    assert_same(*results)
    expected = [-8 * (h + 1) / H * (1 - layer / LAYERS) for h in range(H)]
    torch.testing.assert_close(encoding.log_decay.tolist(), expected)
    assert_same(encoding.shift_keys(encoded_k[:, :, 5:], 5), encoding(q, k[:, :, 5:])[1])


@every_formula
@pytest.mark.parametrize("start", [0, 5])
def test_softmax_scores_match_formula(name, start):
    encoding, (q, k) = build(name), draw(start)
    products, added = by_pairs(name, encoding, q, k)
    expected = products * encoding.scale + added
    q_, k_ = encoding(q, k, start, 0)
    own = encoding.score_function(q_, k_, start)
    if own is None:
        scores = encoding.scale * q_ @ k_.mT + encoding.bias(q_, k_, start)
    else:
        scores = torch.cat([own(x, k_, start + 4 * n) for n, x in enumerate(q_.split(4, dim=2))], dim=2)
    seen = torch.ones(L - start, L, dtype=torch.bool).tril(start)
    scores, expected = scores.masked_fill(~seen, 0.0), expected.masked_fill(~seen, 0.0)
    assert_same(scores, expected)
    assert_same(gradients(encoding, scores, q, k), gradients(encoding, expected, q, k))


@every_formula
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_linear_attention_matches_formula(name, chunk_size):
    encoding, (q, k) = build(name), draw()
    v = torch.randn(2, H, L, 5, dtype=torch.float64, requires_grad=True)
    products, added = by_pairs(name, encoding, q, k)
    weights = products * added.exp()
    expected = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    out = linear_attention(
        *encoding(q, k), v, causal=True, normalize=True, log_decay=encoding.log_decay, chunk_size=chunk_size
    )
    assert_same(out, expected)
    assert_same(gradients(encoding, out, q, k, v), gradients(encoding, expected, q, k, v))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.5, 40.0])
def test_decayed_products_stay_in_float32_range(rate, autocast):
    """With weak and strong decays, at the end of 3,000 positions; masked entries are finite."""
    decay = -rate * torch.tensor([[1.0, 0.3, 0.0, 0.01]], dtype=torch.float64)
    q, k = torch.rand(1, 2, 100, 4, dtype=torch.float64), torch.rand(1, 2, 3000, 4, dtype=torch.float64)
    distance = torch.arange(2900, 3000)[:, None] - torch.arange(3000)
    weights = torch.exp(decay[0] * distance[..., None].clamp(min=0))
    expected = torch.einsum("bhid,bhjd,ijd->bhij", q, k, weights).tril(2900)
    with torch.autocast("cpu", enabled=autocast):
        found = decayed_products(decay, q.float(), k.float())(q.float(), k.float(), 2900)
    assert found.isfinite().all()
    torch.testing.assert_close(found.tril(2900).double(), expected, rtol=1e-5, atol=1e-6)


def test_invalid_options_are_rejected():
    for options, message in (
        ({"gamma": 0.0}, "positive gamma"),
        ({"scale_base": 0}, "scale base of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            build_encoding("xpos", num_heads=H, head_dim=D, causal=True, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("attention", [LinearAttention, SoftmaxAttention])
def test_gradient_of_angles_beside_a_decay_in_half_precision(attention, dtype):
    """It is a difference of large terms: rounding the gradients of q and k makes it noise."""
    torch.manual_seed(0)
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
