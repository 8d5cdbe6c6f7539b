"""Compares reflected keys in blocks with reflecting one key after the other."""

import pytest
import torch
from support.tensors import assert_same, randn, with_gradients

from fairseq_lrpe.ops import reflections
from fairseq_lrpe.ops.reflections import ReflectedKeys

B, H, D = 2, 2, 6


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


@pytest.mark.parametrize("rows, blocks, keys, before, first, queries", [
    (32, 4, 1, 0, 0, 1),
    (32, 4, 33, 0, 0, 33),
    (3, 2, 33, 0, 0, 33),
    (32, 4, 140, 0, 139, 1),
    (32, 4, 300, 0, 256, 44),
    (3, 2, 60, 17, 23, 10),
    (32, 4, 200, 17, 145, 55),
    (3, 2, 60, 59, 59, 1),
    (3, 2, 60, 56, 57, 3),
])  # fmt: skip
def test_scores_and_gradients_match_definition(monkeypatch, rows, blocks, keys, before, first, queries):
    monkeypatch.setattr(reflections, "_BLOCK_SIZE", rows)
    monkeypatch.setattr(reflections, "_MERGED_BLOCKS", blocks)
    beta = 2 * randn(B, H, keys - before, 1, seed=3).sigmoid()  # ‖u‖² is from 0 to 2
    u = torch.nn.functional.normalize(randn(B, H, keys - before, D), dim=-1) * beta.sqrt()
    q, k = randn(B, H, queries, D), randn(B, H, keys, D, seed=1)
    leaves = [x.requires_grad_() for x in (q, k, u)]
    seen = torch.ones(queries, first + queries, dtype=torch.bool).tril(first)
    reflected = ReflectedKeys(k, u)
    found = reflected.scores(q, first).masked_fill(~seen, 0.0), reflected.final_keys()
    assert_same(with_gradients(found, leaves), with_gradients(definition(q, k, u, first), leaves))


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
