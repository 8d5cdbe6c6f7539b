"""Compares CoPE with loops over the paper's equations."""

import copy

import pytest
import torch
from tensor_sizes import TensorSizes
from tensors import assert_same, randn

from fairseq_lrpe.attention.fairseq_adapter import FairseqSoftmaxAttention
from fairseq_lrpe.encodings import build_encoding

H, D, B = 2, 4, 2


def build(positions=64, dtype=torch.float64):
    """Returns an encoding with random embeddings."""
    encoding = build_encoding("cope", num_heads=H, head_dim=D, causal=True, positions=positions)
    with torch.no_grad():
        encoding.embeddings.normal_()
    return encoding.to(dtype)


def attention(positions=64):
    module = FairseqSoftmaxAttention(build(positions)).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def scores(encoding, q, k, q_offset=0, padding=None):
    return encoding.score_function(q, k, q_offset, padding)(q, k, q_offset)


def definition(encoding, q, k, q_offset=0, padding=None):
    """Computes gates, positions and interpolated embeddings; 0 after the query."""
    out, last = q.new_zeros(len(q), H, q.size(2), k.size(2)), len(encoding.embeddings) - 1
    for b in range(len(q)):
        for h in range(H):
            for i in range(q.size(2)):
                query, scaled = q[b, h, i], q[b, h, i] / D**0.5
                position = q.new_zeros(())
                for j in reversed(range(q_offset + i + 1)):
                    if padding is None or not padding[b, j]:
                        position = position + (scaled @ k[b, h, j]).sigmoid()
                    p = position.clamp(max=last)
                    share = p - p.detach().floor()
                    below, above = (encoding.embeddings[int(n)] for n in (p.floor(), p.ceil()))
                    e = share * above + (1 - share) * below
                    out[b, h, i, j] = scaled @ k[b, h, j] + query @ e
    return out


@pytest.mark.parametrize("positions", [2, 3, 64])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize(("queries", "q_offset"), [(9, 0), (3, 6), (1, 8)])
def test_scores_and_gradients_match_definition(positions, padded, queries, q_offset):
    encoding = build(positions)
    q = 2 * randn(B, H, queries, D, seed=1)
    k = 2 * randn(B, H, 9, D, seed=2)
    padding = torch.zeros(B, 9, dtype=torch.bool)
    padding[0, :2] = padding[1, 4] = padding[1, 7:] = padded
    i = torch.arange(q_offset, 9)[:, None]
    seen = (torch.arange(9) <= i) & ~padding[:, None, None]
    leaves, results = [q.requires_grad_(), k.requires_grad_(), encoding.embeddings], []
    for score in (scores, definition):
        found = score(encoding, q, k, q_offset, padding if padded else None).masked_fill(~seen, 0.0)
        gradients = torch.autograd.grad((found * randn(*found.shape, seed=3)).sum(), leaves)
        results.append((found, *gradients))
    assert_same(*results)


def test_positions_are_clipped_to_the_last_embedding():
    """With identical keys, p is (i − j + 1)·g."""
    encoding = build(positions=4)
    q, k = randn(1, H, 1, D, seed=1), randn(1, H, 1, D, seed=2).expand(1, H, 40, D)
    content = (q @ k.mT)[:, :, 0] / D**0.5
    position = content.sigmoid() * torch.arange(40, 0, -1)
    far = position >= 3
    assert far.sum() > 20 and not far.all()
    added = scores(encoding, q, k, 39)[:, :, 0] - content
    assert_same(added[far], (q @ encoding.embeddings[3]).expand(1, H, 40)[far])
    whole = position.floor().long().clamp(max=2)
    share = (position - whole).clamp(max=1)[..., None]
    between = (1 - share) * encoding.embeddings[whole] + share * encoding.embeddings[whole + 1]
    assert_same(added, (between * q).sum(-1))


def test_initial_embeddings_have_no_effect():
    encoding = build_encoding("cope", num_heads=H, head_dim=D, causal=True)
    assert {n: tuple(x.shape) for n, x in encoding.state_dict().items()} == {"embeddings": (64, D)}
    q, k = randn(B, H, 9, D, seed=1), randn(B, H, 9, D, seed=2)
    assert_same(scores(encoding.double(), q, k), q @ k.mT / D**0.5)


def test_window_does_not_change_positions():
    """Positions of keys inside the window do not depend on keys before it."""
    module, x = attention(30), randn(40, B, H * D)
    module.window = 8
    windowed, _ = module(x)
    for i in (8, 20, 39):
        assert_same(windowed[i], module(x[i - 7 : i + 1])[0][-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_accumulates_positions_in_float32(dtype):
    """Hundreds of gates are summed, more than half precision can represent."""
    encoding = build(dtype=dtype)
    q, k = randn(1, H, 1, D, seed=1).to(dtype), randn(1, H, 400, D, seed=2).to(dtype)
    found = scores(encoding, q, k, 399)
    assert found.dtype == dtype
    exact = scores(copy.deepcopy(encoding).double(), q.double(), k.double(), 399)
    assert (found - exact).norm() / exact.norm() < 8 * torch.finfo(dtype).eps
    leaves = [q.requires_grad_(), k.requires_grad_(), encoding.embeddings]
    gradients = torch.autograd.grad(scores(encoding, q, k, 399).sum(), leaves)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        assert gradient.dtype == leaf.dtype and gradient.isfinite().all()


def test_memory_is_bounded_by_the_scores():
    encoding = build()
    leaves = [randn(B, H, 256, D, seed=s).requires_grad_() for s in (1, 2)]
    with TensorSizes() as sizes:
        scores(encoding, *leaves).sum().backward()
    assert sizes.largest <= 2 * B * H * 256 * 256  # a complex number has two elements


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match=r"^cope needs at least 2 positions, not 1$"):
        build(positions=1)
