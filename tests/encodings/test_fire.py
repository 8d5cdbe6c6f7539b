"""Compares FIRE's bias with the authors' listing, pair by pair."""

import math

import pytest
import torch
from pairwise_scores import SHAPES, D, H, check_scores, random_encoding, scores
from tensors import assert_same, randn

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.encodings import build_encoding, fire
from fairseq_lrpe.ops.position_index import PositionIndex


def listing(encoding, q, k, i, j, h):
    """The listing for one pair, without the output bias of the perceptron."""
    threshold = abs(encoding.multiplier * encoding.threshold)
    normaliser = torch.maximum(torch.tensor(float(i)), threshold)
    distance = torch.log(abs(encoding.c * abs(i - j)) + 1)
    normalised = distance / (torch.log(abs(encoding.c * normaliser) + 1) + 1e-6)
    hidden = torch.relu(encoding.hidden_weight[:, 0] * normalised + encoding.hidden_bias)
    return (q * k).sum(-1) / math.sqrt(D) + (encoding.output_weight[h] * hidden).sum()


def fire_of(causal=True, signs=(1, 1), multiplier=1.1, **options):
    encoding = random_encoding("fire", causal, **options)
    with torch.no_grad():
        encoding.c.fill_(0.3 * signs[0])
        encoding.multiplier.fill_(multiplier * signs[1])
    return encoding


@pytest.mark.parametrize(("causal", "queries", "keys", "q_offset"), SHAPES)
@pytest.mark.parametrize("options", [{}, {"threshold": 3}, {"threshold": 1, "width": 5}], ids=str)
def test_scores_and_gradients_match_authors_listing(options, causal, queries, keys, q_offset):
    """With all, some, or at most one of the queries up to the threshold."""
    check_scores(listing, fire_of(causal, **options), queries, keys, q_offset)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1)], ids=str)
def test_negative_parameters_act_as_positive(signs):
    check_scores(listing, fire_of(signs=signs, threshold=3), 6, 6, 0)


@pytest.mark.parametrize("elements", [1, 32 * 9 * 2, 2**30])
def test_blocks_of_pairs_match_full_computation(elements, monkeypatch):
    monkeypatch.setattr(fire, "_MAX_HIDDEN_ELEMENTS", elements)
    check_scores(listing, fire_of(False, threshold=2), 9, 9, 0)
    check_scores(listing, fire_of(True, threshold=2), 9, 9, 0)


def test_normalizer_uses_query_positions_of_position_index():
    encoding, index = fire_of(False, threshold=3), torch.tensor([4, 0, 2, 2, 7])
    places = PositionIndex(index, index, 7)
    q = randn(1, H, 5, D)
    found = encoding.bias(q, q, places)[0]
    for row, i in enumerate(index.tolist()):
        whole = encoding.bias(q[:, :, :1], randn(1, H, 8, D), i)[0, :, 0]
        assert_same(found[:, row], whole[:, index])


def test_long_sequences_with_recomputation(monkeypatch):
    """Above 1,024 positions softmax attention computes the bias in blocks and recomputes it for gradients."""
    attention = FairseqSoftmaxAttention(fire_of(threshold=900)).double()
    x = randn(1100, 1, H * D).requires_grad_()
    w, leaves = randn(1100, 1, H * D, seed=1), [x, *attention.parameters()]
    found = torch.autograd.grad((attention(x)[0] * w).sum(), leaves)
    monkeypatch.setattr("fairseq_lrpe.attention.softmax._CAUSAL_BLOCK_SIZE", 2**40)
    monkeypatch.setattr("fairseq_lrpe.attention.softmax._MAX_BIAS_ELEMENTS", 2**40)
    monkeypatch.setattr(fire, "_MAX_HIDDEN_ELEMENTS", 2**40)
    assert_same(found, torch.autograd.grad((attention(x)[0] * w).sum(), leaves))


def test_initialization():
    """c = 0.1, L is a quarter of the positions, and the perceptron is initialized as torch's layers."""
    encoding = build_encoding("fire", num_heads=H, head_dim=D, causal=True, max_positions=2048)
    shapes = {"c": (1,), "multiplier": (1,), "hidden_weight": (32, 1), "hidden_bias": (32,)}
    shapes["output_weight"] = (H, 32)
    assert {n: tuple(x.shape) for n, x in encoding.named_parameters()} == shapes
    assert encoding.c == 0.1 and encoding.multiplier == 1 and encoding.threshold == 512
    for name, most in (("hidden_weight", 1), ("hidden_bias", 1), ("output_weight", 32**-0.5)):
        parameter = getattr(encoding, name)
        assert 0.8 * most < parameter.abs().max() <= most, name
    short = build_encoding("fire", num_heads=H, head_dim=D, causal=True, max_positions=3)
    given = build_encoding("fire", num_heads=H, head_dim=D, causal=True, threshold=7)
    assert short.threshold == 1 and given.threshold == 7


def test_checkpoint_stores_the_threshold():
    """Loaded into a model for longer texts, the scores are the same."""
    trained, longer = random_encoding("fire", max_positions=12), random_encoding("fire", max_positions=48)
    longer.load_state_dict(trained.state_dict())
    q, k = randn(1, H, 12, D, seed=1), randn(1, H, 12, D, seed=2)
    assert scores(trained, q, k).equal(scores(longer, q, k))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width of at least 1 .*not width 0 and threshold 0"),
        ({"threshold": -1}, "threshold of at least 0, not width 32 and threshold -1"),
        ({"k": 3}, "'fire'.*'k'.*width, threshold"),
    ],
)
def test_invalid_arguments_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        random_encoding("fire", **options)
