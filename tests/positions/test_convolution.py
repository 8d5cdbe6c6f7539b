"""Compares the convolution with a loop over its definition; tests its initialization."""

import pytest
import torch

from fairseq_lrpe.positions import build_position

E, V, PAD = 4, 11, 1


def build(width=E, **options):
    return build_position("convolution", embed_dim=width, vocab_size=V, **options).double()


def loops(x, weight, real, causal):
    """Returns x (L, E) plus its convolution; rows that are not ``real`` are treated as zeros."""
    k = len(weight)
    first = k - 1 if causal else (k - 1) // 2
    rows = []
    for i in range(len(x)):
        row = []
        for e in range(x.size(1)):
            places = [(j, i - first + j) for j in range(k)]
            seen = [(j, at) for j, at in places if 0 <= at < len(x) and real[at]]
            row.append(x[i, e] + sum(weight[j, e] * x[at, e] for j, at in seen))
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [[], [5, 6], [0, 1], [3]])
def test_matches_definition(padded, causal, size, monkeypatch):
    monkeypatch.setattr("fairseq_lrpe.positions.convolution.Convolution.kernel_size", size)
    module = build(causal=causal)
    x = torch.randn(2, 7, E, dtype=torch.float64, requires_grad=True)
    tokens = torch.full((2, 7), 3)
    tokens[1, padded] = PAD
    expected = torch.stack([loops(x[b], module.weight, tokens[b] != PAD, causal) for b in range(2)])
    out = module(x, torch.arange(7).expand(2, 7), tokens)
    mixed = torch.randn(2, 7, E, dtype=torch.float64)
    results = [(y, *torch.autograd.grad((y * mixed).sum(), (x, module.weight))) for y in (out, expected)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_affect_a_sentence(side, causal):
    module = build(causal=causal)
    x, positions = torch.randn(1, 7, E, dtype=torch.float64), torch.arange(7)[None]
    sentence = slice(3, 7) if side == "left" else slice(0, 4)
    tokens = torch.full((1, 7), PAD)
    tokens[:, sentence] = 3
    alone = module(x[:, sentence], positions[:, :4], tokens[:, sentence])
    assert module(x, positions, tokens)[:, sentence].equal(alone)


def test_initialization_matches_depthwise_conv1d():
    ours = build(width=512).weight
    torchs = torch.nn.Conv1d(512, 512, 3, groups=512).weight
    assert ours.abs().max() <= 3**-0.5 and torchs.abs().max() <= 3**-0.5
    assert abs(ours.mean()) < 0.03 and abs(ours.std() - torchs.std()) < 0.03
