"""Compares TUPE's scores with the paper's formula and the authors' code, pair by pair."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from pairwise_scores import SHAPES, D, H, check_scores, random_encoding
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.encodings.t5 import relative_bucket
from fairseq_lrpe.ops.position_index import PositionIndex

E = H * D
SIZE = {"max_positions": 9}
KINDS = [
    pytest.param({"relative_bias": relative, "cls": cls}, id=("R" if relative else "A") + "-cls" * cls)
    for relative, cls in itertools.product((False, True), (True, False))
]


def row_score(encoding, row, other, h):
    """Returns the unscaled score of two rows of the table."""
    p, r = (F.layer_norm(encoding.positions.weight[n], (E,)) for n in (row, other))
    p, r = (x * encoding.norm.weight + encoding.norm.bias for x in (p, r))
    heads = slice(h * D, (h + 1) * D)
    p = encoding.to_query.weight[heads] @ p + encoding.to_query.bias[heads]
    return p @ (encoding.to_key.weight[heads] @ r + encoding.to_key.bias[heads])


def tupe(encoding, q, k, i, j, h):
    """With ``cls``, the table has an additional first row."""
    special = encoding.cls
    if special and i == 0:
        positions = row_score(encoding, 0, 0, h)
    elif special and j == 0:
        positions = row_score(encoding, 1, 1, h)
    else:
        positions = row_score(encoding, i + special, j + special, h)
    score = ((q * k).sum(-1) + positions) / (2 * D) ** 0.5
    if not encoding.relative_bias:
        return score
    bucket = relative_bucket(torch.tensor(i - j), encoding.causal, 32, 128)
    if special and 0 in (i, j):
        bucket = 16 if i == 0 else 32
    return score + encoding.buckets.weight[bucket, h]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
def test_scores_and_gradients_match_paper(options, causal, queries, keys, q_offset):
    check_scores(tupe, random_encoding("tupe", causal, **options, **SIZE), queries, keys, q_offset)


@pytest.mark.parametrize("options", KINDS)
def test_position_index(options):
    encoding, index = random_encoding("tupe", False, **options, **SIZE), torch.tensor([4, 0, 2, 2, 0, 7])
    places = PositionIndex(index, index, 7)
    q, k = randn(1, H, 6, D, seed=1), randn(1, H, 6, D, seed=2)
    found = encoding.scale * q @ k.mT + encoding.bias(q, k, places)
    for i, j, h in itertools.product(range(6), range(6), range(H)):
        expected = tupe(encoding, q[:, h, i], k[:, h, j], int(index[i]), int(index[j]), h)
        assert_same(found[:, h, i, j], expected)


def test_cls_is_off_in_causal_attention():
    assert not random_encoding("tupe", True, **SIZE).cls and random_encoding("tupe", False, **SIZE).cls


@pytest.mark.parametrize("causal", [True, False])
def test_parameters(causal):
    """With ``cls`` there is one more row and one more bucket; initialized as in the authors' code."""
    encoding = build_encoding(
        "tupe", num_heads=8, head_dim=8, causal=causal, relative_bias=True, max_positions=100
    )
    shapes = {"positions.weight": (100 + (not causal), 64), "norm.weight": (64,), "norm.bias": (64,)}
    for name in ("to_query", "to_key"):
        shapes |= {f"{name}.weight": (64, 64), f"{name}.bias": (64,)}
    shapes["buckets.weight"] = (32 + (not causal), 8)
    assert {n: tuple(x.shape) for n, x in encoding.state_dict().items()} == shapes
    for name, parameter in encoding.named_parameters():
        if parameter.dim() == 2:
            assert 0.017 < parameter.std() < 0.023, name
        else:
            assert (parameter == (name == "norm.weight")).all(), name


@pytest.mark.parametrize("queries", [1, 5], ids=["a step", "all"])
def test_unused_table_rows_are_not_read(queries):
    encoding = random_encoding("tupe", True, **SIZE)
    with torch.no_grad():
        encoding.positions.weight[5:] = torch.nan
    assert encoding.bias(randn(1, H, queries, D), randn(1, H, 5, D), 5 - queries).isfinite().all()


def test_position_beyond_the_table_is_rejected():
    encoding, q, k = random_encoding("tupe", False, **SIZE), randn(1, H, 2, D), randn(1, H, 10, D)
    assert encoding.bias(q, k[:, :, :9], 7).isfinite().all()
    message = "tupe has a table of 9 positions, and position 9 is beyond it: .*--max-target-positions"
    with pytest.raises(ValueError, match=message):
        encoding.bias(q, k, 8)
    index = torch.tensor([0, 9])
    with pytest.raises(ValueError, match=message):
        encoding.bias(q, q, PositionIndex(index, index, 9))
