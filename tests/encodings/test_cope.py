"""Compares CoPE with loops over the paper's equations."""

import copy

import pytest
import torch
from support.pairwise_scores import D, H, all_scores, random_encoding
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention

B = 2


def definition(encoding, q, k, q_offset, padding):
    """Computes gates, positions and interpolated embeddings; 0 after the query."""
    out, last = q.new_zeros(len(q), H, q.size(2), k.size(2)), len(encoding.embeddings) - 1
    for b in range(len(q)):
        for h in range(H):
            for i in range(q.size(2)):
                query, scaled = q[b, h, i], q[b, h, i] / D**0.5
                position = q.new_zeros(())
                for j in reversed(range(q_offset + i + 1)):
                    if not padding[b, j]:
                        position = position + (scaled @ k[b, h, j]).sigmoid()
                    p = position.clamp(max=last)
                    share = p - p.detach().floor()
                    below, above = (encoding.embeddings[int(n)] for n in (p.floor(), p.ceil()))
                    e = share * above + (1 - share) * below
                    out[b, h, i, j] = scaled @ k[b, h, j] + query @ e
    return out


@pytest.mark.parametrize("positions, padded, queries, q_offset", [
    (2, False, 9, 0),  # most positions are clipped to the last embedding
    (3, True, 9, 0),
    (3, False, 3, 6),
    (64, True, 3, 6),
    (64, True, 1, 8),
])  # fmt: skip
def test_scores_and_gradients_match_definition(positions, padded, queries, q_offset):
    encoding = random_encoding("cope", positions=positions)
    q = 2 * randn(B, H, queries, D, seed=1)
    k = 2 * randn(B, H, 9, D, seed=2)
    padding = torch.zeros(B, 9, dtype=torch.bool)
    padding[0, :2] = padding[1, 4] = padding[1, 7:] = padded
    i = torch.arange(q_offset, 9)[:, None]
    hidden = (torch.arange(9) > i) | padding[:, None, None]
    leaves = [q.requires_grad_(), k.requires_grad_(), encoding.embeddings]
    found = all_scores(encoding, q, k, q_offset, padding=padding if padded else None)
    expected = definition(encoding, q, k, q_offset, padding)
    results = [with_gradients(x.masked_fill(hidden, 0.0), leaves) for x in (found, expected)]
    assert_same(*results)


def test_window_does_not_change_positions():
    module = FairseqSoftmaxAttention(random_encoding("cope", positions=30)).double().eval()
    module.window, x = 8, 2 * randn(40, B, H * D)
    windowed, _ = module(x)
    for i in (8, 20, 39):
        assert_same(windowed[i], module(x[i - 7 : i + 1])[0][-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_accumulates_positions_in_float32(dtype):
    """Hundreds of gates are summed, more than half precision can represent."""
    encoding = random_encoding("cope").to(dtype)
    q, k = randn(1, H, 1, D, seed=1).to(dtype), randn(1, H, 400, D, seed=2).to(dtype)
    found = all_scores(encoding, q, k, 399)
    assert found.dtype == dtype
    exact = all_scores(copy.deepcopy(encoding).double(), q.double(), k.double(), 399)
    assert (found - exact).norm() / exact.norm() < 8 * torch.finfo(dtype).eps
    leaves = [q.requires_grad_(), k.requires_grad_(), encoding.embeddings]
    gradients = torch.autograd.grad(all_scores(encoding, q, k, 399).sum(), leaves)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        assert gradient.dtype == leaf.dtype and gradient.isfinite().all()
