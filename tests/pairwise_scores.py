"""Comparison of the attention scores of an encoding with a formula for one query and one key."""

import torch
from tensors import assert_same, randn

from fairseq_lrpe.encodings import build_encoding

H, D = 2, 4
SHAPES = [  # (causal, queries, keys, q_offset)
    (True, 6, 6, 0),
    (True, 1, 9, 8),
    (True, 3, 8, 5),
    (False, 6, 6, 0),
    (False, 2, 9, 3),
    (False, 3, 5, 2),
]


def random_encoding(name, causal=True, **options):
    """Returns a small float64 encoding whose parameters are drawn from N(0, 1)."""
    encoding = build_encoding(name, num_heads=H, head_dim=D, causal=causal, **options)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding.double()


def all_scores(encoding, q, k, q_offset=0, k_offset=0, features=None):
    """Returns the scaled scores (B, H, queries, keys) before masking.

    In causal attention, the scores of keys after their query are arbitrary.
    """
    q, k = encoding(q, k, q_offset, k_offset)
    score_function = encoding.score_function(q, k, q_offset, input_features=features)
    if score_function is not None:
        return score_function(q, k, q_offset)
    out, bias = encoding.scale * (q @ k.mT), encoding.bias(q, k, q_offset)
    return out if bias is None else out + bias


def scores(encoding, q, k, q_offset=0):
    """Returns the scaled scores (B, H, queries, keys), with 0 at masked keys."""
    out = all_scores(encoding, q, k, q_offset)
    if encoding.causal:
        i = torch.arange(q_offset, q_offset + q.size(2))[:, None]
        out = out.masked_fill(torch.arange(k.size(2)) > i, 0.0)
    return out


def products(encoding, q, k, q_offset=0, k_offset=0):
    """Returns the unscaled, unmasked products of all encoded queries and keys."""
    q, k = encoding(q, k, q_offset, k_offset)
    return q @ k.mT


def pairwise_matrix(score, encoding, q, k, q_offset=0, k_offset=0, causal=None):
    """Returns the matrix (B, H, queries, keys) of a formula for single pairs, with 0 at masked keys.

    Args:
        score: function ``score(encoding, q_i, k_j, i, j, h)`` that returns the scores (B,) of a query and a
            key at positions i and j in head h.
        causal: whether to mask keys after their query; by default as the encoding.
    """
    causal = encoding.causal if causal is None else causal

    def row(i, h):
        seen = range(k.size(2))[: i + 1 if causal else None]
        found = [score(encoding, q[:, h, i - q_offset], k[:, h, j], i, j + k_offset, h) for j in seen]
        return torch.stack(found + [0 * found[0]] * (k.size(2) - len(found)), dim=-1)

    rows = range(q_offset, q_offset + q.size(2))
    return torch.stack([torch.stack([row(i, h) for i in rows], dim=-2) for h in range(H)], dim=1)


def check_scores(score, encoding, queries, keys, q_offset):
    """Asserts that an encoding has the scores and gradients of :func:`pairwise_matrix` of ``score``."""
    leaves = [randn(2, H, n, D, seed=n).requires_grad_() for n in (queries, keys)]
    leaves += encoding.parameters()
    results = []
    qk = leaves[:2]
    for out in (scores(encoding, *qk, q_offset), pairwise_matrix(score, encoding, *qk, q_offset)):
        loss = (out * randn(*out.shape, seed=3)).sum()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        results.append((out, *gradients))
    assert_same(*results)
