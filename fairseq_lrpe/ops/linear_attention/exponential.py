"""Linear attention with the feature map exp, whose sums neither overflow nor vanish.

Feature t of key j is divided by e^{c_jt}, where c_jt is the largest exponent of the keys up to j, so that it
is at most 1. From position j to i, sums are multiplied by e^{c_jt − c_it}, and queries are multiplied by
e^{c_it}, up to a factor of each query. All of this cancels in the normalization.

If the encoding mixes features, only a maximum over all features cancels. Products of features that are far
below both maxima then vanish.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.decay import MIN_LOG_DECAY
from fairseq_lrpe.ops.float64 import float64_options
from fairseq_lrpe.ops.precision import at_least_float32

_LOWEST = -1e30
"""Initial value of the maximum, before the first key."""


class ExpFeatures(NamedTuple):
    """Features of queries and keys, and their scale.

    Attributes:
        q: e^{q + c − m}, (B, H, Lq, d).
        k: e^{k − c}, (B, H, Lk, d).
        levels: logarithms of the scale of the sums before the first key and at each key,
            (B, H, 1 + Lk, 1 or d); they do not decrease.
        maximum: c of the last key, (B, H, 1, 1 or d).
        log_scale: m = max(q + c), (B, H, Lq, 1).
    """

    q: Tensor
    k: Tensor
    levels: Tensor
    maximum: Tensor
    log_scale: Tensor


def exp_features(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool,
    per_feature: bool,
    log_decay: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    maximum: Tensor | None = None,
) -> ExpFeatures:
    """Returns the features of queries and keys, which are exponentials, and their scale.

    Args:
        q: exponents of the queries (B, H, Lq, d).
        k: exponents of the keys (B, H, Lk, d); if ``causal``, the last Lq are at the queries' positions.
        causal: whether attention is causal.
        per_feature: whether each feature has its own maximum.
        log_decay: as in :func:`fairseq_lrpe.ops.linear_attention`.
        key_padding_mask: (B, Lk), True at padding.
        maximum: the ``maximum`` that the call for the earlier keys returned, or None without earlier keys.
    """
    q, k = at_least_float32(q), at_least_float32(k)
    if key_padding_mask is not None:
        k = k.masked_fill(key_padding_mask[:, None, :, None], -torch.inf)
    peaks = k.detach() if per_feature else k.detach().amax(-1, keepdim=True)
    if maximum is None:
        maximum = peaks.new_full((*k.shape[:2], 1, peaks.size(-1)), _LOWEST)
    peaks = torch.cat([maximum, peaks], dim=2)
    decay = 0
    if log_decay is not None:
        # Not at least e^-100 as in sums without maxima: the exponents of keys can differ by more than 100.
        rate = log_decay.to(**float64_options(q.device)).clamp(min=MIN_LOG_DECAY)
        rate = rate[..., None] if rate.dim() in (1, 3) else rate
        rate = rate if rate.dim() > 2 else rate[:, None].expand(-1, k.size(2), -1)  # (.., Lk, 1 or d)
        if key_padding_mask is not None and rate.dim() > 3:
            rate = rate.masked_fill(key_padding_mask[:, None, :, None], 0.0)
        decay, rate = _sums_from_zero(rate), rate.detach()
        slowest = _sums_from_zero(rate if per_feature else rate.amax(-1, keepdim=True))
        peaks = (peaks.to(slowest) - slowest).cummax(2).values + slowest
    elif causal:
        peaks = peaks.cummax(2).values
    else:
        peaks = torch.cat([maximum, peaks.amax(2, keepdim=True).expand_as(peaks)[:, :, 1:]], dim=2)
    maxima = peaks[:, :, 1:].to(k)
    own = maxima[:, :, k.size(2) - q.size(2) :] if causal else peaks[:, :, -1:]
    exponents = q + own
    log_scale = exponents.detach().amax(-1, keepdim=True)
    features = (exponents - log_scale).exp(), (k - maxima).exp()
    return ExpFeatures(*features, peaks - decay, peaks[:, :, -1:].to(k), log_scale)


def _sums_from_zero(x):
    return F.pad(x.cumsum(-2), (0, 0, 1, 0))


def scaled_attention(
    q: Tensor, k: Tensor, v: Tensor, levels: Tensor, causal: bool, sums: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns Σ_jt q_it e^{l_jt − l_it} k_jt v_j over all keys, or over j ≤ i, and the sums for later calls.

    Causal attention is computed in O(L log L) time: for block sizes 1, 2, 4, .., the queries of every second
    block attend to the keys of the block before it. No exponent is positive.

    Args:
        q: encoded features of the queries (B, H, Lq, d).
        k: encoded features of the keys (B, H, Lk, d).
        v: values (B, H, Lk, dv).
        levels: l, (B, H, 1 + Lk, 1 or d).
        causal: whether attention is causal.
        sums: the sums (B, H, d, dv) that the previous call returned, or None.
    """
    start, levels, queries, keys = levels[:, :, :1], levels[:, :, 1:], q.size(2), k.size(2)
    end = levels[:, :, -1:] if keys else start
    total = _scale(k, levels, end).mT @ v
    if sums is not None:
        total = total + _scale(sums.mT, start, end).mT
    if not causal:
        return q @ total, total
    q = F.pad(q, (0, 0, keys - queries, 0))
    out = (q * k).sum(-1, keepdim=True) * v
    if sums is not None:
        out = out + _scale(q, start, levels) @ sums
    size = 1
    while size < keys:
        blocks = [F.pad(x, (0, 0, 0, -keys % (2 * size))) for x in (q, k, v, levels)]
        (_, right), (left, _), (values, _), (earlier, later) = (
            x.unflatten(2, (-1, 2, size)).unbind(3) for x in blocks
        )
        border = earlier[..., -1:, :]
        left, right = _scale(left, earlier, border), _scale(right, border, later)
        part = right @ (left.mT @ values) if size > q.size(3) else (right @ left.mT) @ values
        out = out + F.pad(part, (0, 0, size, 0)).flatten(2, 3)[:, :, :keys]
        size *= 2
    return out[:, :, keys - queries :], total


def _scale(x, earlier, later):
    """Returns x multiplied by e^(earlier − later)."""
    # Only the padding of a block has positive exponents.
    return x * (earlier - later).clamp(max=0).exp().to(x)
