"""Encodings of tokens that stand in a grid: the same as at each token's own position, one at a time."""

import pytest
import torch
from exact import assert_same, random

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, build_encoding
from fairseq_lrpe.ops.places import Places, diagonal_places

OPTIONS = [
    *((name, {}) for name, cls in ENCODINGS.items() if cls.bidirectional),
    *(("lrpe", {"core": core, "rotation": "identity"}) for core in ("unitary", "mixed", "permutation")),
    ("lrpe", {"core": "unitary", "rotation": "fft"}),
    ("lrpe", {"core": "unitary", "learn_theta": True}),
    ("shaw", {"k": 2, "values": True, "per_head": True}),
    ("lfhc", {"k": 1, "per_head": True}),
    ("deberta", {"k": 2}),
]
every = pytest.mark.parametrize(
    "name, options", OPTIONS, ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x.values()))
)
HEADS, WIDTH, ROWS, COLUMNS = 2, 8, 3, 4


def encoding_of(name, options):
    torch.manual_seed(0)
    shared = {"num_heads": HEADS, "head_dim": WIDTH, "causal": False, "layer": 2, "max_positions": 6}
    encoding = build_encoding(name, **shared, **options).double().eval()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return encoding


def inputs():
    return [random(2, HEADS, ROWS * COLUMNS, WIDTH, seed=i).requires_grad_() for i in range(3)]


def test_the_places_of_a_grid():
    places = diagonal_places(3, 4)
    assert places.index.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5] and places.last == 5
    some = places.rows(2, 3)
    assert some.index.tolist() == [2, 3, 1] and some.keys is places.keys
    assert some.columns()[1].tolist() == [5 - 3 + j for j in places.keys.tolist()]


def scores_one_by_one(encoding, q, k, places):
    """Scores of each query, a sequence of its own, with each key, at its own offset."""
    rows = []
    for i, s in enumerate(places.index.tolist()):
        row = []
        for j, t in enumerate(places.keys.tolist()):
            # The key stands at t among others, so that a bias finds it there.
            keys = torch.zeros(2, HEADS, places.last + 1, WIDTH, dtype=torch.double)
            keys = torch.cat([keys[:, :, :t], k[:, :, j : j + 1], keys[:, :, t + 1 :]], dim=2)
            one, all_keys = encoding(q[:, :, i : i + 1], keys, s, 0)
            score = encoding.scale * (one @ all_keys.mT)
            if (bias := encoding.bias(one, all_keys, s)) is not None:
                score = score + bias
            row.append(score[..., 0, t])
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=-2)


@every
def test_scores_are_those_of_each_pair(name, options):
    encoding, places = encoding_of(name, options), diagonal_places(ROWS, COLUMNS)
    q, k, _ = inputs()
    expected = scores_one_by_one(encoding, q, k, places)
    encoded_q, encoded_k = encoding(q, k, places, places)
    found = encoding.scale * (encoded_q @ encoded_k.mT)
    if encoding.biased:
        found = found + encoding.bias_in_parts(encoded_q, encoded_k, places)(encoded_q, encoded_k, places)
    assert_same(found, expected)
    weights, learned = random(*found.shape, seed=9), [q, k, *encoding.parameters()]
    gradients = [torch.autograd.grad(x, learned, weights, allow_unused=True) for x in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_same(one, other)


@every
def test_softmax_attention_in_a_grid(name, options):
    """From the scores of each pair, and values and output encoded at each one's own position."""
    encoding, places = encoding_of(name, options), diagonal_places(ROWS, COLUMNS)
    attention, x = SoftmaxAttention(encoding).double().eval(), random(ROWS * COLUMNS, 2, HEADS * WIDTH)
    attention.places = places
    q, k, v = (
        attention._project(projection, [x])
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    weights = scores_one_by_one(encoding, q, k, places).softmax(-1)
    s = places.index.tolist()
    values = [encoding.encode_values(v[:, :, j : j + 1], s[j]) for j in range(len(s))]
    o = weights @ torch.cat(values, dim=2)
    if encoding.needs_weights:
        for i, at in enumerate(s):
            # Each key's weight at its position among all, of which several keys have the same.
            by_place = weights.new_zeros(2, HEADS, 1, places.last + 1)
            index = places.keys.expand(2, HEADS, 1, -1)
            by_place = by_place.scatter_add(-1, index, weights[:, :, i : i + 1])
            o[:, :, i : i + 1] += encoding.values_from_weights(by_place, at)
    o = torch.cat([encoding.decode_output(o[:, :, i : i + 1], s[i]) for i in range(len(s))], dim=2)
    assert_same(attention(x)[0], attention.out_proj(attention.merge(o)))


@pytest.mark.parametrize("norm", ["denominator", "layernorm", "content"])
@pytest.mark.parametrize(
    "name", [name for name, cls in ENCODINGS.items() if cls.decomposable and cls.bidirectional]
)
def test_linear_attention_in_a_grid(name, norm):
    """Rows of the grid encoded one by one, each from its own offset, then all keys for all queries."""
    encoding, places = encoding_of(name, {}), diagonal_places(ROWS, COLUMNS)
    attention = LinearAttention(encoding, linear_norm=norm).double().eval()
    x = random(ROWS * COLUMNS, 2, HEADS * WIDTH)
    attention.places = places
    q, k, v = (
        attention._project(projection, [x])
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = attention.feature_map(q), attention.feature_map(k)
    rows = [slice(COLUMNS * r, COLUMNS * (r + 1)) for r in range(ROWS)]
    at_q, at_k = zip(*(encoding(q[:, :, row], k[:, :, row], r, r) for r, row in enumerate(rows)), strict=True)
    of_q, of_k = torch.cat(at_q, dim=2), torch.cat(at_k, dim=2)
    of_v = torch.cat([encoding.encode_values(v[:, :, row], r) for r, row in enumerate(rows)], dim=2)
    weights = of_q @ of_k.mT
    o = weights @ of_v
    if norm == "denominator":
        o = o / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    o = torch.cat([encoding.decode_output(o[:, :, row], r) for r, row in enumerate(rows)], dim=2)
    if norm == "layernorm":
        o = attention._normalized(o)
    if norm == "content":
        o = o / (q @ k.mT).sum(-1, keepdim=True)
    assert_same(attention(x)[0], attention.out_proj(attention.merge(o)))


def test_long_biases_are_made_for_some_rows_at_a_time(monkeypatch):
    """Beyond 1,024 tokens in the blocks of softmax attention, with gradients."""
    encoding = encoding_of("xl", {})
    attention, x = SoftmaxAttention(encoding).double(), random(33 * 33, 1, HEADS * WIDTH).requires_grad_()
    attention.places = diagonal_places(33, 33)
    found = attention(x)[0]
    [gradient] = torch.autograd.grad(found, x, random(*found.shape, seed=3))
    monkeypatch.setattr("fairseq_lrpe.attention.softmax._BIAS_ELEMENTS", 2**30)
    whole = attention(x)[0]
    assert_same(found, whole)
    assert_same(gradient, torch.autograd.grad(whole, x, random(*found.shape, seed=3))[0])


def test_any_places():
    index = torch.tensor([4, 0, 2, 2, 7])
    places, encoding = Places(index, index, 7), encoding_of("rope", {})
    x = random(1, HEADS, 5, WIDTH)
    found, _ = encoding(x, x, places, places)
    for i, s in enumerate(index.tolist()):
        assert_same(found[:, :, i : i + 1], encoding(x[:, :, i : i + 1], x[:, :, :1], s, 0)[0])
