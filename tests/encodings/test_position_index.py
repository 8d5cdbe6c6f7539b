"""Compares encodings with a PositionIndex with encoding each token at its own offset."""

import pytest
import torch
from support.pairwise_scores import all_scores
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.encodings import ENCODINGS, Context, build_encoding
from fairseq_lrpe.ops.position_index import diagonal_position_index

CASES = [(name, {}) for name, cls in ENCODINGS.items() if cls.bidirectional]
CASES += [
    *(("lrpe", {"core": core, "rotation": "identity"}) for core in ("mixed", "permutation")),
    ("lrpe", {"core": "unitary", "rotation": "fft", "learn_theta": True}),
    ("shaw", {"k": 2, "values": True, "per_head": True}),
    ("shaw", {"k": 3, "k_after": 1}),
    *(("huang", {"method": method, "k": 2}) for method in (1, 3)),
]
HEADS, WIDTH, ROWS, COLUMNS = 2, 8, 3, 4


def build(name, options):
    torch.manual_seed(0)
    shared = {"num_heads": HEADS, "head_dim": WIDTH, "causal": False, "layer": 2, "max_positions": 6}
    encoding = build_encoding(name, **shared, **options).double().eval()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return encoding


def heads(attention, x):
    """Returns the queries, keys and values of all heads."""
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    return [attention.split_heads(projection(x)) for projection in projections]


def test_diagonal_position_index():
    positions = diagonal_position_index(3, 4)
    assert positions.query_positions.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]
    assert positions.max_position == 5
    some = positions.block(2, 3)
    assert some.query_positions.tolist() == [2, 3, 1] and some.key_positions.equal(positions.key_positions)
    assert positions.block(2, 3, 5).key_positions.equal(positions.key_positions[:5])
    assert some.distance_index()[1].tolist() == [5 - 3 + j for j in positions.key_positions.tolist()]


def scores_of_single_pairs(encoding, q, k, positions):
    rows = []
    for i, s in enumerate(positions.query_positions.tolist()):
        row = []
        for j, t in enumerate(positions.key_positions.tolist()):
            # The key is placed at index t, where a bias expects it.
            keys = torch.zeros(2, HEADS, positions.max_position + 1, WIDTH, dtype=torch.double)
            keys = torch.cat([keys[:, :, :t], k[:, :, j : j + 1], keys[:, :, t + 1 :]], dim=2)
            row.append(all_scores(encoding, q[:, :, i : i + 1], keys, s)[..., 0, t])
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=-2)


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_softmax_attention_with_position_index(name, options):
    encoding, positions = build(name, options), diagonal_position_index(ROWS, COLUMNS)
    attention = FairseqSoftmaxAttention(encoding).double().eval()
    x = randn(ROWS * COLUMNS, 2, HEADS * WIDTH).requires_grad_()
    q, k, v = heads(attention, x)
    weights = scores_of_single_pairs(encoding, q, k, positions).softmax(-1)
    s = positions.query_positions.tolist()
    values = [encoding.encode_values(v[:, :, j : j + 1], Context(0, s[j])) for j in range(len(s))]
    o = weights @ torch.cat(values, dim=2)
    # Sums the weights of keys that have the same position.
    by_position = weights.new_zeros(2, HEADS, len(s), positions.max_position + 1)
    by_position = by_position.index_add(-1, positions.key_positions, weights)
    rows = []
    for i, at in enumerate(s):
        of_query = by_position[:, :, i : i + 1] if encoding.needs_weights else None
        rows.append(encoding.decode_output(o[:, :, i : i + 1], Context(at), of_query))
    expected = attention.out_proj(attention.merge_heads(torch.cat(rows, dim=2)))
    leaves = [x, *encoding.parameters()]
    assert_same(
        with_gradients(attention(x, position_index=positions)[0], leaves), with_gradients(expected, leaves)
    )


def test_long_biases_in_blocks(monkeypatch):
    """Above 1,024 tokens, with gradients."""
    attention = FairseqSoftmaxAttention(build("xl", {})).double()
    positions = diagonal_position_index(33, 33)
    x = randn(33 * 33, 1, HEADS * WIDTH).requires_grad_()
    blocks = with_gradients(attention(x, position_index=positions)[0], [x])
    monkeypatch.setattr("fairseq_lrpe.attention.softmax._MAX_BIAS_ELEMENTS", 2**30)
    assert_same(blocks, with_gradients(attention(x, position_index=positions)[0], [x]))
