"""Encodings that change the scores: properties besides their formulas, and formulas of whole rows.

Rows of CoPE and stick-breaking attention depend on all keys, and pairs of DAPE on all heads.
"""

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.pairwise_scores import SHAPES, D, H, all_scores, position_scores, random_encoding
from support.tensors import assert_same, perturbed, randn, with_gradients

from fairseq_lrpe.attention import SoftmaxAttention
from fairseq_lrpe.attention.weights import attention_weights
from fairseq_lrpe.encodings import Context, dape, fire
from fairseq_lrpe.ops.position_index import PositionIndex

E = H * D


# T5.

SURVEY = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 10, 10, 10, *[11] * 8]


@pytest.mark.parametrize("causal, options, expected", [
    (False, {}, dict(enumerate(SURVEY)) | {-x: 16 + SURVEY[x] for x in range(1, 31)}),
    # Powers of two are exactly at the edge of a bucket: 8·2^(m/2), and 16·2^(3m/16) if causal.
    (False, {}, {31: 11, 32: 12, 63: 13, 64: 14, 127: 15, -32: 28, -64: 30, -128: 31, 300: 15, -300: 31}),
    (True, {}, {x: x for x in range(16)} | {16: 16, 18: 16, 19: 17, 112: 30, 113: 31, 128: 31, 300: 31}),
    # 2·32^(m/2)
    (False, {"buckets": 8, "max_distance": 64}, {1: 1, 2: 2, 11: 2, 12: 3, 300: 3, -1: 5, -11: 6, -12: 7}),
])  # fmt: skip
def test_buckets_of_t5(causal, options, expected):
    """Read from a bias equal to the bucket index."""
    encoding = random_encoding("t5", causal, **options)
    with torch.no_grad():
        numbers = torch.arange(encoding.buckets, dtype=torch.float64)
        encoding.relative_attention_bias.weight.copy_(numbers[:, None].expand(-1, H))
    bias = position_scores(encoding, 1, 301 if causal else 601, 300)[0]
    assert bias[0].equal(bias[1])
    assert {x: bias[0, 0, 300 - x].item() for x in expected} == expected


# Shaw, NEZHA and LFHC.


@pytest.mark.parametrize("name, options", [
    ("shaw", {"k": 2, "k_after": 0}),
    ("shaw", {"k": 1, "k_after": 3, "per_head": True}),
    ("nezha", {"k": 3}),
])  # fmt: skip
@pytest.mark.parametrize("causal, queries, keys, q_offset", SHAPES)
def test_values_and_gradients_match_survey(name, options, causal, queries, keys, q_offset):
    """Σ_j a_ij w'_{clip(i−j, k)} of survey Eq. 5; NEZHA's vectors are those of the scores."""
    encoding = random_encoding(name, causal, **options, **{"values": True} if name == "shaw" else {})
    leaf = randn(2, H, queries, keys).requires_grad_()
    weights = leaf.tril(q_offset) if causal else leaf
    if name == "nezha":
        angles = torch.arange(-3, 4)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        vectors = torch.stack([-angles.sin(), angles.cos()], dim=-1).double().flatten(1)
        vectors, after = vectors.expand(H, -1, -1), 3
    else:
        vectors, after = encoding.w_v.weight, encoding.k_after
        per_head = vectors.unflatten(1, (-1, D)).transpose(0, 1)
        vectors = per_head.expand(H, -1, -1)
    distance = torch.arange(q_offset, q_offset + queries)[:, None] - torch.arange(keys)
    rows = vectors[:, distance.clamp(-after, encoding.k) + after]  # (H, queries, keys, D)
    expected = torch.einsum("bhij,hijd->bhid", weights, rows)
    leaves = [leaf, *encoding.parameters()]
    found = encoding.decode_output(torch.zeros(2, H, queries, D).double(), Context(q_offset), weights)
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves), 1e-6)


def test_shaw_values_use_the_dropped_out_weights():
    module = SoftmaxAttention(E, H, random_encoding("shaw", False, values=True, k=9), dropout=0.5).double()
    with torch.no_grad():
        for p in (module.v_proj.weight, module.v_proj.bias, module.encoding.w_v.weight):
            p.zero_()
        module.out_proj.weight.copy_(torch.eye(E))
        module.out_proj.bias.zero_()
        module.v_proj.bias[0] = module.encoding.w_v.weight[:, 1] = 1
    out = module(randn(2, 7, E))
    assert_same(out[..., 0], out[..., 1])
    assert (out[..., 0] - 1).abs().max() > 0.1
    module.eval()
    assert_same(module(randn(2, 7, E))[..., 0], torch.ones(2, 7, dtype=torch.float64))


# FIRE.


def fire_of(causal=True, **options):
    encoding = random_encoding("fire", causal, **options)
    with torch.no_grad():
        encoding.c.fill_(0.3)
        encoding.multiplier.fill_(1.1)
    return encoding


@pytest.mark.parametrize("elements", [1, 32 * 9 * 2])
def test_fire_in_blocks_of_pairs(elements, monkeypatch):
    q, k = randn(2, H, 9, D, seed=1).requires_grad_(), randn(2, H, 9, D, seed=2)
    results = []
    for most in (2**30, elements):
        monkeypatch.setattr(fire, "_MAX_HIDDEN_ELEMENTS", most)
        for causal in (False, True):
            torch.manual_seed(0)
            encoding = fire_of(causal, threshold=2)
            results.append(with_gradients(all_scores(encoding, q, k), [q, *encoding.parameters()]))
    assert_same(results[2:], results[:2])


@pytest.mark.parametrize("name", ["fire", "fope"])
def test_checkpoints_store_what_depends_on_the_length(name):
    """FIRE's threshold and FoPE's series."""
    trained, longer = (random_encoding(name, max_positions=n, head_dim=64) for n in (12, 512))
    longer.load_state_dict(trained.state_dict())
    x = randn(1, H, 12, 64)
    assert all_scores(trained, x, x).equal(all_scores(longer, x, x))


# TUPE.


def test_position_beyond_the_table_is_rejected():
    encoding, q = random_encoding("tupe", False, max_positions=9), randn(1, H, 2, D)
    assert encoding.cls and not random_encoding("tupe").cls
    assert position_scores(encoding, 2, 9, 7).isfinite().all()
    message, index = "tupe has a table of 9 positions, and position 9 is beyond it", torch.tensor([0, 9])
    with pytest.raises(ValueError, match=message):
        position_scores(encoding, 2, 10, 8)
    with pytest.raises(ValueError, match=message):
        all_scores(encoding, q, q, PositionIndex(index, index, 9))


# CoPE.


def cope(encoding, q, k, hidden):
    """Computes gates, which are 0 at hidden keys, positions and interpolated embeddings."""
    content = q @ k.mT / D**0.5
    gates = content.sigmoid().masked_fill(hidden, 0.0)
    positions = torch.stack([gates[..., j:].sum(-1) for j in range(k.size(2))], dim=-1)
    positions = positions.clamp(max=len(encoding.embeddings) - 1)[..., None]
    below, above = (encoding.embeddings[n.long().squeeze(-1)] for n in (positions.floor(), positions.ceil()))
    share = positions - positions.detach().floor()
    return content + torch.einsum("bhid,bhijd->bhij", q, share * above + (1 - share) * below)


@pytest.mark.parametrize("positions, padded, queries, q_offset", [
    (2, False, 9, 0),  # most positions are clipped to the last embedding
    (3, True, 9, 0),
    (3, False, 3, 6),
    (64, True, 3, 6),
    (64, True, 1, 8),
])  # fmt: skip
def test_scores_and_gradients_of_cope(positions, padded, queries, q_offset):
    encoding = random_encoding("cope", positions=positions)
    q, k = (2 * randn(2, H, n, D, seed=n) for n in (queries, 9))
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, :2] = padding[1, 4] = padding[1, 7:] = padded
    hidden = (torch.arange(9) > torch.arange(q_offset, 9)[:, None]) | padding[:, None, None]
    leaves = [q.requires_grad_(), k.requires_grad_(), encoding.embeddings]
    found = all_scores(encoding, q, k, q_offset, padding=padding if padded else None)
    scores = found, cope(encoding, q, k, hidden)
    assert_same(*(with_gradients(x.masked_fill(hidden, 0.0), leaves) for x in scores))


def test_window_does_not_change_positions_of_cope():
    module = SoftmaxAttention(E, H, random_encoding("cope", positions=30)).double()
    module.window, x = 8, 2 * randn(2, 40, E)
    windowed = module(x)
    for i in (8, 20, 39):
        assert_same(windowed[:, i], module(x[:, i - 7 : i + 1])[:, -1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_cope_in_half_precision(dtype):
    encoding = random_encoding("cope").to(dtype)
    q, k = (randn(1, H, n, D, seed=n).to(dtype).requires_grad_() for n in (1, 400))
    leaves = [q, k, encoding.embeddings]
    for gradient in torch.autograd.grad(all_scores(encoding, q, k, 399).sum(), leaves):
        assert gradient.dtype == dtype and gradient.isfinite().all()


# DAPE.


def prior(encoding, distance, h):
    """KERPLE's −r₁ log(1 + r₂ |i−j|), with parameters of at least 0.01, or ALiBi's −2^(−8h/H) |i−j|."""
    if not list(encoding.prior.parameters()):
        return -(2 ** (-8 * (h + 1) / H)) * distance
    p, a = (x[h].clamp(min=0.01) for x in (encoding.prior.bias_p, encoding.prior.bias_a))
    return -p * torch.log(1 + a * distance)


def dape_scores(encoding, q, k, q_offset):
    """Applies the perceptron to the 2H scores and biases of each pair."""
    distance = torch.arange(q_offset, q_offset + q.size(2))[:, None] - torch.arange(k.size(2))
    biases = torch.stack([prior(encoding, distance.abs().double(), h) for h in range(H)])
    scores = q @ k.mT / D**0.5
    inputs = torch.cat([scores, biases.expand_as(scores)], dim=1).movedim(1, -1)  # (B, Lq, Lk, 2H)
    hidden = inputs @ encoding.hidden_weight.T + encoding.hidden_bias
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    return scores + biases + (hidden @ encoding.output_weight.T).movedim(-1, 1)


@pytest.mark.parametrize("elements", [dape._MAX_HIDDEN_ELEMENTS, 1])
@pytest.mark.parametrize("options", [{}, {"width": 5}, {"bias": "alibi"}], ids=str)
@pytest.mark.parametrize("causal, queries, keys, q_offset", SHAPES)
def test_scores_and_gradients_of_dape(monkeypatch, causal, queries, keys, q_offset, options, elements):
    """With all pairs at once, and one row of pairs at a time."""
    monkeypatch.setattr(dape, "_MAX_HIDDEN_ELEMENTS", elements)
    encoding = random_encoding("dape", causal, **options)
    q, k = (randn(2, H, n, D, seed=n).requires_grad_() for n in (queries, keys))
    leaves, seen = [q, k, *encoding.parameters()], torch.ones(queries, keys, dtype=torch.bool)
    seen = seen.tril(q_offset) if causal else seen
    scores = all_scores(encoding, q, k, q_offset), dape_scores(encoding, q, k, q_offset)
    assert_same(*(with_gradients(x[..., seen], leaves) for x in scores))


# Stick-breaking attention.


def stick_breaking():
    return perturbed(SoftmaxAttention(E, H, "stick_breaking", causal=True).double().eval())


def projected(module, x):
    """Returns q, k and v (.., L, H, d) of inputs (.., L, E)."""
    return [p(x).unflatten(-1, (H, D)) for p in (module.q_proj, module.k_proj, module.v_proj)]


def broken_sticks(module, x, rows=range(99), window=99):
    """Computes attention of a sentence (n, E) without padding, for all queries or those of ``rows``."""
    (q, k, v), outputs = projected(module, x), []
    for i in rows[: len(x)]:
        out, rest = torch.zeros(H, D).double(), torch.ones(H, 1).double()
        for j in reversed(range(max(0, i + 1 - window), i)):
            share = ((q[i] * k[j]).sum(-1, keepdim=True) / D**0.5).sigmoid()
            out, rest = out + share * rest * v[j], rest * (1 - share)
        outputs.append(module.out_proj(out.flatten()))
    return torch.stack(outputs)


@pytest.mark.parametrize("span", [(0, 11), (4, 11), (0, 7), (2, 9)])
def test_stick_breaking_attention_and_gradients(span):
    """With arbitrary inputs at padding."""
    module, x, place = stick_breaking(), randn(2, 11, E).requires_grad_(), slice(*span)
    padding = torch.ones(2, 11, dtype=torch.bool)
    padding[:, place] = False
    found = module(x, key_padding_mask=padding if padding.any() else None)[:, place]
    expected = torch.stack([broken_sticks(module, row[place]) for row in x])
    leaves = [x, *module.parameters()]
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


def test_stick_breaking_in_blocks_with_a_window():
    """In blocks of 150 queries, with 19 keys before a query."""
    module, x = stick_breaking(), randn(1, 300, E).requires_grad_()
    module.window, rows = 20, [0, 1, 25, 149, 150, 299]
    found, expected = module(x)[0, rows], broken_sticks(module, x[0], rows, window=20)
    assert_same(with_gradients(found, [x]), with_gradients(expected, [x]))


def test_first_query_of_stick_breaking_has_no_weights():
    module, q, k = stick_breaking(), randn(1, H, 5, D), randn(1, H, 5, D, seed=1)
    assert_same(module(randn(2, 5, E))[:, 0], module.out_proj.bias.expand(2, E))
    weights = attention_weights(module, q, k)
    assert_same(weights.diagonal(dim1=-2, dim2=-1), torch.zeros(1, H, 5).double())
    assert (weights.sum(-1) < 1).all() and not weights[:, :, 0].any() and weights[:, :, 1:].any(-1).all()


@pytest.mark.skipif(not find_spec("fla"), reason="needs flash-linear-attention")
def test_stick_breaking_of_flash_linear_attention():
    """The file of its naive function is run alone, because importing the package takes seconds."""
    path = Path(find_spec("fla").submodule_search_locations[0], "ops/stickbreaking_attn/naive.py")
    naive = runpy.run_path(str(path))["naive_stickbreaking_attn"]
    module, x = stick_breaking(), randn(2, 9, E).requires_grad_()
    expected, leaves = module.out_proj(naive(*projected(module, x))[0].flatten(2)), [x, *module.parameters()]
    assert_same(with_gradients(module(x), leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stick_breaking_sums_in_float32(dtype):
    """Hundreds of logarithms are summed. Excluded keys are left out, because their score is far larger."""
    encoding = random_encoding("stick_breaking")
    q, k = (randn(1, H, n, D, seed=n).to(dtype) for n in (1, 400))
    found = all_scores(encoding, q, k, 399)[..., :399]
    exact = all_scores(encoding, q.double(), k.double(), 399)[..., :399]
    assert found.dtype == dtype
    assert (found - exact).norm() / exact.norm() < 2 * torch.finfo(dtype).eps


def test_large_scores_of_stick_breaking():
    """Shares of 0 and 1 give finite gradients."""
    module, x = stick_breaking(), 100 * randn(1, 9, E)
    found = module(x)[0]
    assert_same(found, broken_sticks(module, x[0]))
    assert torch.autograd.grad(found.sum(), module.q_proj.weight)[0].isfinite().all()


def test_normalized_outputs_of_stick_breaking():
    """A GroupNorm of each head's output, before the output projection."""
    module = perturbed(SoftmaxAttention(E, H, "stick_breaking_norm", causal=True).double().eval())
    plain = SoftmaxAttention(E, H, "stick_breaking", causal=True).double().eval()
    plain.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        plain.out_proj.weight.copy_(torch.eye(E))
        plain.out_proj.bias.zero_()
    x = randn(2, 11, E).requires_grad_()
    heads = plain(x).unflatten(-1, (H, D))
    deviation = heads - heads.mean(-1, keepdim=True)
    normalized = deviation / (deviation.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    norm = module.encoding.norm
    expected = module.out_proj(normalized.flatten(-2) * norm.weight + norm.bias)
    leaves = [x, norm.weight, norm.bias]
    assert_same(with_gradients(module(x), leaves), with_gradients(expected, leaves), 1e-9)
