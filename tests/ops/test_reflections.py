"""Compares reflected keys in blocks with reflecting one key after the other."""

import pytest
import torch
from tensors import assert_same, randn

from fairseq_lrpe.ops import reflections
from fairseq_lrpe.ops.reflections import ReflectedKeys

B, H, D = 2, 2, 6


def vectors(length, seed=0, d=D):
    """Returns vectors u with ‖u‖² = β from 0 to 2."""
    beta = 2 * randn(B, H, length, 1, seed=seed + 100).sigmoid()
    return torch.nn.functional.normalize(randn(B, H, length, d, seed=seed), dim=-1) * beta.sqrt()


def definition(q, k, u, first):
    """Returns the scores, 0 after the query, and the keys after the last position."""
    before, rows = k.size(2) - u.size(2), []
    moved = k[:, :, :before]
    for t in range(before, k.size(2)):
        at = u[:, :, t - before, None]
        moved = torch.cat([moved - (moved * at).sum(-1, keepdim=True) * at, k[:, :, t, None]], dim=2)
        if first <= t < first + q.size(2):
            seen = (moved * q[:, :, t - first, None]).sum(-1)
            rows.append(torch.nn.functional.pad(seen, (0, first + q.size(2) - t - 1)))
    return torch.stack(rows, dim=2), moved


@pytest.mark.parametrize(
    ("keys", "before", "first", "queries"),
    [
        (1, 0, 0, 1),
        (9, 0, 0, 9),
        (33, 0, 0, 33),
        (140, 0, 139, 1),
        (300, 0, 256, 44),
        (60, 17, 23, 10),
        (200, 17, 145, 55),
        (60, 59, 59, 1),
        (60, 56, 57, 3),
    ],
)
@pytest.mark.parametrize(("rows", "blocks"), [(32, 4), (3, 2)])
def test_scores_and_gradients_match_definition(monkeypatch, keys, before, first, queries, rows, blocks):
    monkeypatch.setattr(reflections, "_BLOCK_SIZE", rows)
    monkeypatch.setattr(reflections, "_MERGED_BLOCKS", blocks)
    q, k = randn(B, H, queries, D, seed=1), randn(B, H, keys, D, seed=2)
    leaves, results = [x.requires_grad_() for x in (q, k, vectors(keys - before))], []
    seen = torch.ones(queries, first + queries, dtype=torch.bool).tril(first)
    reflected = ReflectedKeys(k, leaves[2])
    ours = reflected.scores(q, first).masked_fill(~seen, 0.0), reflected.final_keys()
    for scores, moved in (ours, definition(*leaves, first)):
        total = (scores * randn(*scores.shape, seed=3)).sum() + (moved * randn(*moved.shape, seed=4)).sum()
        results.append((scores, moved, *torch.autograd.grad(total, leaves, materialize_grads=True)))
    assert_same(*results)


def test_orthogonal_reflections_preserve_norms():
    """With β = 2 every H is orthogonal, and applying the same H twice is the identity."""
    k, u = randn(B, H, 200, D), 2**0.5 * torch.nn.functional.normalize(randn(B, H, 200, D, seed=1), dim=-1)
    assert_same(ReflectedKeys(k, u).final_keys().norm(dim=-1), k.norm(dim=-1))
    same = u[:, :, :1].expand(-1, -1, 200, -1)
    assert_same(ReflectedKeys(k, same).final_keys()[:, :, 1::2], k[:, :, 1::2])


@pytest.mark.parametrize("beta", [1.0, 2.0, None])
def test_float32_is_exact_over_4096_keys(beta):
    """Nearly constant vectors are the worst case for the triangular systems."""
    d, length = 64, 4096
    u = torch.nn.functional.normalize(randn(1, 1, 1, d) + 0.3 * randn(1, 1, length, d, seed=1), dim=-1)
    u = u * (2 * randn(1, 1, length, 1, seed=2).sigmoid() if beta is None else beta) ** 0.5
    q, k = randn(1, 1, 100, d, seed=3), randn(1, 1, length, d, seed=4)
    exact = ReflectedKeys(k, u).scores(q, length - 100)
    ours = ReflectedKeys(k.float(), u.float()).scores(q.float(), length - 100)
    seen = torch.ones(100, length, dtype=torch.bool).tril(length - 100)
    assert ((ours - exact)[..., seen]).norm() / exact[..., seen].norm() < 1e-5
