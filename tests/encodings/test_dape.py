"""Compares DAPE with loops over the paper's formula."""

import math

import pytest
import torch
from support.pairwise_scores import SHAPES, D, H, all_scores, random_encoding
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.encodings import dape


def bias(encoding, distance, h):
    """KERPLE's −r₁ log(1 + r₂ |i−j|), with parameters of at least 0.01, or ALiBi's −2^(−8h/H) |i−j|."""
    if not list(encoding.prior.parameters()):
        return torch.tensor(-(2 ** (-8 * (h + 1) / H)) * distance, dtype=torch.float64)
    p, a = (x[h].clamp(min=0.01) for x in (encoding.prior.bias_p, encoding.prior.bias_a))
    return -p * torch.log(1 + a * distance)


def definition(encoding, q, k, q_offset):
    """Applies the perceptron to the 2H scores and biases of each pair; 0 after the query if causal."""
    rows = []
    for i in range(q.size(2)):
        row = []
        for j in range(k.size(2)):
            if encoding.causal and j > i + q_offset:
                row.append(torch.zeros(len(q), H, dtype=q.dtype))
                continue
            scores = (q[:, :, i] * k[:, :, j]).sum(-1) / math.sqrt(D)  # (B, H)
            biases = torch.stack([bias(encoding, abs(i + q_offset - j), h) for h in range(H)])
            inputs = torch.cat([scores, biases.expand(len(q), H)], dim=1)
            hidden = inputs @ encoding.hidden_weight.T + encoding.hidden_bias
            hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
            row.append(scores + biases + hidden @ encoding.output_weight.T)
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=-2)


@pytest.mark.parametrize("elements", [dape._MAX_HIDDEN_ELEMENTS, 1])
@pytest.mark.parametrize("options", [{}, {"width": 5}, {"bias": "alibi"}], ids=str)
@pytest.mark.parametrize("causal, queries, keys, q_offset", SHAPES)
def test_scores_and_gradients_match_definition(
    monkeypatch, causal, queries, keys, q_offset, options, elements
):
    """With all pairs at once, and one row of pairs at a time."""
    monkeypatch.setattr(dape, "_MAX_HIDDEN_ELEMENTS", elements)
    encoding = random_encoding("dape", causal, **options)
    q, k = (randn(2, H, n, D, seed=n).requires_grad_() for n in (queries, keys))
    leaves = [q, k, *encoding.parameters()]
    found = all_scores(encoding, q, k, q_offset)
    if causal:
        found = found.masked_fill(torch.arange(keys) > torch.arange(queries)[:, None] + q_offset, 0.0)
    expected = definition(encoding, q, k, q_offset)
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("name", ["kerple", "alibi"])
def test_without_the_perceptron_it_is_the_bias(name):
    encoding = random_encoding("dape", bias=name)
    with torch.no_grad():
        encoding.output_weight.zero_()
    q, k = randn(2, H, 5, D, seed=1), randn(2, H, 5, D, seed=2)
    plain = random_encoding(name)
    plain.load_state_dict(encoding.prior.state_dict())
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    assert_same(all_scores(encoding, q, k)[..., seen], all_scores(plain, q, k)[..., seen])
