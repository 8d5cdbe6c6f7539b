"""Comparison of the attention scores of an encoding with a formula for one query and one key."""

import itertools
import math

import torch

from fairseq_lrpe.encodings import Context, build_encoding, softmax_scores
from support.tensors import assert_same, randn, randomized, with_gradients

H, D = 2, 4
SHAPES = [  # (causal, queries, keys, q_offset)
    (True, 6, 6, 0),
    (True, 3, 8, 5),
    (False, 6, 6, 0),
    (False, 2, 9, 3),
    (False, 4, 4, 3),
]


def random_encoding(name, causal=True, **options):
    """Returns a small float64 encoding in evaluation mode whose parameters are drawn from N(0, 1)."""
    options = {"num_heads": H, "head_dim": D, "causal": causal, **options}
    return randomized(build_encoding(name, **options)).double().eval()


def heads(module, x):
    """Returns the queries, keys and values (B, H, L, d) of an attention module for inputs (B, L, E)."""
    return [module.split_heads(p(x)) for p in (module.q_proj, module.k_proj, module.v_proj)]


def in_parts(module, x, sizes, padding=None):
    """Returns the outputs (B, L, E) and the last state of an attention module that decodes x in parts."""
    masks = itertools.repeat(None) if padding is None else padding.split(sizes, dim=1)
    outputs, state = [], None
    for part, mask in zip(x.split(sizes, dim=1), masks, strict=False):
        out, state = module(part, key_padding_mask=mask, state=state, return_state=True)
        outputs.append(out)
    return torch.cat(outputs, dim=1), state


def rope_angles(position):
    return position * 10000 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)


def sinusoid(position, width):
    """Returns the sines and cosines (width,) of position / 10000^(2t/width) (LFHC paper Eqs. 6 and 7)."""
    angles = (float(position) / 10000 ** (2 * t / width) for t in range(width // 2))
    return torch.tensor([f(a) for a in angles for f in (math.sin, math.cos)], dtype=torch.float64)


def rotated(x, angles):
    """Multiplies x_2t + i x_2t+1 by exp(i θ_t), for x (..., 2n) and angles θ (..., n)."""
    a, b, cos, sin = x[..., ::2], x[..., 1::2], angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def all_scores(encoding, q, k, q_offset=0, k_offset=0, *, padding=None, features=None):
    """Returns the scaled scores (B, H, queries, keys) before masking, as softmax attention computes them.

    In causal attention, the scores of keys after their query are arbitrary. Other tests call this function
    or attention modules instead of the methods of encodings that compute scores.

    Args:
        padding: (B, keys), True at padding.
        features: features of the layer's inputs at the keys, if the encoding has them.
    """
    context = Context(q_offset, k_offset, padding, features)
    return softmax_scores(encoding, *encoding(q, k, context), context)


def score_of_pair(encoding, q, k, i, j):
    """Returns the scores (B, H) of queries (B, H, d) at position i and keys (B, H, d) at position j."""
    keys = k.new_zeros(*k.shape[:2], max(i, j) + 1, k.size(-1))
    keys[:, :, j] = k  # a bias expects key j at index j
    return all_scores(encoding, q[:, :, None], keys, i)[:, :, 0, j]


def position_scores(encoding, queries, keys, q_offset=0, dtype=torch.float64):
    """Returns the part (1, H, queries, keys) of the scores that depends on neither queries nor keys."""
    heads, d = encoding.num_heads, encoding.head_dim
    q, k = (torch.zeros(1, heads, n, d, dtype=dtype) for n in (queries, keys))
    return all_scores(encoding, q, k, q_offset).expand(1, heads, queries, keys)


def products(encoding, q, k, q_offset=0, k_offset=0):
    q, k = encoding(q, k, Context(q_offset, k_offset))
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
        seen = range(k.size(2))[: i - k_offset + 1 if causal else None]
        found = [score(encoding, q[:, h, i - q_offset], k[:, h, j], i, j + k_offset, h) for j in seen]
        return torch.stack(found + [0 * found[0]] * (k.size(2) - len(found)), dim=-1)

    rows = range(q_offset, q_offset + q.size(2))
    heads = range(encoding.num_heads)
    return torch.stack([torch.stack([row(i, h) for i in rows], dim=-2) for h in heads], dim=1)


def check_scores(score, encoding, queries, keys, q_offset):
    """Asserts that an encoding has the scores and gradients of :func:`pairwise_matrix` of ``score``."""
    q, k = (randn(2, H, n, encoding.head_dim, seed=n).requires_grad_() for n in (queries, keys))
    leaves = [q, k, *encoding.parameters()]
    found = all_scores(encoding, q, k, q_offset)
    if encoding.causal:
        i = torch.arange(queries)[:, None] + q_offset
        found = found.masked_fill(torch.arange(keys) > i, 0.0)
    expected = pairwise_matrix(score, encoding, q, k, q_offset)
    assert_same(with_gradients(found, leaves), with_gradients(expected, leaves))
