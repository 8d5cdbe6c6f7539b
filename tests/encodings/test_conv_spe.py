"""Compares ConvSPE with its formula, for given noise and in expectation over the noise."""

import math

import pytest
import torch
from pairwise_scores import D, H, pairwise_matrix, products
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding
from fairseq_lrpe.ops.position_index import PositionIndex

P = 5


def build(layer=1, kernel_size=P, d=D):
    """Returns an encoding in evaluation mode whose parameters are all random."""
    shared = {"num_heads": H, "head_dim": d, "causal": True, "layer": layer}
    encoding = build_encoding("conv_spe", kernel_size=kernel_size, **shared).double().eval()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding


def encoded(encoding, x, kernel, position, noise, h):
    """Returns Σ_n x_n (√(1−g_n) Σ_p kernel_np Z_{n,position+p} + √g_n Z'_n) / (d R)^1/4, (B, R)."""
    total = 0
    for n in range(D):
        gate = 1 / (1 + torch.exp(-encoding.gate[h, n]))
        row = sum(kernel[h, n, p] * noise[h, n, position + p] for p in range(P))
        row = (1 - gate).sqrt() * row + gate.sqrt() * encoding.noise[0, h, n]
        total = total + x[:, n, None] * row / (D * D) ** 0.25
    return total


@pytest.mark.parametrize(("q_offset", "k_offset"), [(0, 0), (7, 2), (62, 58), (0, 130)])
def test_scores_and_gradients_match_formula(q_offset, k_offset):
    """Positions 58 to 70 and 130 to 140 need the noise of two and three blocks."""
    encoding = build()
    noise = encoding._noise(0, 150, encoding._fixed_block).double()

    def conv_spe(encoding, q, k, i, j, h):
        q_hat = encoded(encoding, q, encoding.kernel_q, i, noise, h)
        return (q_hat * encoded(encoding, k, encoding.kernel_k, j, noise, h)).sum(-1)

    leaves = [randn(2, H, n, D, seed=n).requires_grad_() for n in (3, 4)] + [*encoding.parameters()]
    offsets, results = (q_offset, k_offset), []
    for out in (
        products(encoding, *leaves[:2], *offsets),
        pairwise_matrix(conv_spe, encoding, *leaves[:2], *offsets, causal=False),
    ):
        results.append((out, *torch.autograd.grad((out * randn(*out.shape, seed=3)).sum(), leaves)))
    assert_same(*results)


def expected_scores(encoding, q, k, q_offset, k_offset):
    """Returns Σ_n q_in k_jn ((1−g_n) Σ_p u_np w_{n,p+i−j} + g_n), (H, queries, keys)."""
    out = torch.zeros(H, q.size(2), k.size(2), dtype=torch.float64)
    for h in range(H):
        for i in range(q.size(2)):
            for j in range(k.size(2)):
                distance = i + q_offset - j - k_offset
                for n in range(D):
                    gate = 1 / (1 + math.exp(-encoding.gate[h, n]))
                    u, w = encoding.kernel_q[h, n].tolist(), encoding.kernel_k[h, n].tolist()
                    shared = sum(u[p] * w[p + distance] for p in range(P) if 0 <= p + distance < P)
                    out[h, i, j] += q[0, h, i, n] * k[0, h, j, n] * ((1 - gate) * shared + gate)
    return out


@torch.no_grad()
def test_exact_expectation(monkeypatch):
    """Scores are bilinear in the noise, so their expectation is the sum of those for unit vectors."""
    encoding, q, k = build(), randn(1, H, 3, D, seed=1), randn(1, H, 4, D, seed=2)
    q_offset, k_offset, count = 4, 1, 10
    total = 0
    for unit in torch.eye(count * D + D, dtype=torch.float64):
        position = unit[: count * D].view(1, D, count, 1).expand(H, -1, -1, D)
        constant = unit[count * D :].view(1, 1, D, 1).expand(1, H, -1, D)
        monkeypatch.setattr(encoding, "_noise", lambda *_, noise=position: noise)
        monkeypatch.setattr(encoding, "draw", lambda noise=constant: noise)
        total = total + products(encoding, q, k, q_offset, k_offset)[0]
    assert_same(total, expected_scores(encoding, q, k, q_offset, k_offset))


@torch.no_grad()
def test_average_over_draws():
    encoding, q, k = build().train(), randn(1, H, 3, D, seed=1), randn(1, H, 4, D, seed=2)
    draws = torch.stack([products(encoding, q, k, 9, 7)[0] for _ in range(3000)])
    expected, error = expected_scores(encoding, q, k, 9, 7), draws.std(dim=0) / math.sqrt(len(draws))
    assert ((draws.mean(dim=0) - expected) / error).abs().max() < 4.5
    assert (expected.abs() > 20 * error).any()


@torch.no_grad()
def test_fixed_noise_depends_on_the_position_only():
    encoding, x = build(), randn(1, H, 200, D)
    whole, _ = encoding(x, x)
    for start, stop in ((0, 1), (63, 65), (130, 200)):
        part, _ = encoding(x[:, :, start:stop], x[:, :, :1], start, 0)
        assert_same(part, whole[:, :, start:stop], 1e-12)
    index = torch.tensor([70, 3, 3, 0])
    found, _ = encoding(x[:, :, index], x[:, :, index], *(PositionIndex(index, index, 80),) * 2)
    assert_same(found, whole[:, :, index], 1e-12)
    noise = encoding._noise(0, 1000, encoding._fixed_block)
    assert abs(noise.mean()) < 0.03 and abs(noise.std() - 1) < 0.03
    assert not noise[:, :, :64].equal(noise[:, :, 64:128])


@torch.no_grad()
def test_draws_of_noise():
    encoding, q, k = build(), randn(1, H, 9, D, seed=1), randn(1, H, 9, D, seed=2)
    assert products(encoding, q, k).equal(products(encoding, q, k))
    other = build(layer=2)
    other.load_state_dict(encoding.state_dict())
    assert not torch.allclose(products(encoding, q, k), products(other, q, k))
    encoding.train()
    assert not torch.allclose(products(encoding, q, k), products(encoding, q, k))
    encoding.kernel_k.copy_(encoding.kernel_q)  # then q and k have the same matrices
    ours, same = encoding(q.expand(2, -1, -1, -1), q)
    assert_same(ours, same.expand(2, -1, -1, -1), 1e-12)


def test_parameters():
    encoding = build_encoding("conv_spe", num_heads=8, head_dim=16, causal=False)
    assert {name: tuple(x.shape) for name, x in encoding.state_dict().items()} == {
        "kernel_q": (8, 16, 200),
        "kernel_k": (8, 16, 200),
        "gate": (8, 16),
    }
    assert encoding.kernel_q.min() >= 0 and 0.099 < encoding.kernel_q.max() <= 0.1
    with pytest.raises(ValueError, match="conv_spe needs a kernel size of at least 1, not 0"):
        build(kernel_size=0)
    with pytest.raises(ValueError, match="conv_spe cannot shift the positions"):
        encoding.shift_keys(torch.zeros(1, 8, 1, 16), 1)
