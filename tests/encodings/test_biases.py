"""Properties of encodings that change the scores, in addition to their formulas."""

import pytest
import torch
from support.pairwise_scores import SHAPES, D, H, all_scores, position_scores, random_encoding
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.encodings import Context, fire
from fairseq_lrpe.ops.position_index import PositionIndex

E = H * D


def attention(name, causal=True, dropout=0.0, **options):
    module = FairseqSoftmaxAttention(random_encoding(name, causal, **options), dropout=dropout).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


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
    module = attention("shaw", causal=False, values=True, k=9, dropout=0.5)
    with torch.no_grad():
        for p in (module.v_proj.weight, module.v_proj.bias, module.encoding.w_v.weight):
            p.zero_()
        module.out_proj.weight.copy_(torch.eye(E))
        module.out_proj.bias.zero_()
        module.v_proj.bias[0] = module.encoding.w_v.weight[:, 1] = 1
    out, _ = module(randn(7, 2, E))
    assert_same(out[..., 0], out[..., 1])
    assert (out[..., 0] - 1).abs().max() > 0.1
    module.eval()
    assert_same(module(randn(7, 2, E))[0][..., 0], torch.ones(7, 2, dtype=torch.float64))


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


def test_fire_checkpoint_stores_the_threshold():
    trained, longer = random_encoding("fire", max_positions=12), random_encoding("fire", max_positions=48)
    longer.load_state_dict(trained.state_dict())
    assert position_scores(trained, 12, 12).equal(position_scores(longer, 12, 12))


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
