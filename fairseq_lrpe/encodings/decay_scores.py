"""The effect of ``log_decay`` on the scores of softmax attention.

A decay of heads is added to the scores: Σ_{l=j+1..i} log_decay_l, which is log_decay·(i−j) if it is constant.
A decay of features weights the products: Σ_t exp(Σ_{l=j+1..i} log_decay_lt) q_it k_jt.
"""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.ops.decay import (
    decay_of_keys,
    decayed_products,
    finite_log_decay,
    gate_bias,
    gated_products,
    is_constant,
    is_of_features,
)
from fairseq_lrpe.ops.float64 import to_float64
from fairseq_lrpe.ops.position_index import is_consecutive
from fairseq_lrpe.ops.relative import distance_table, expand_distances


def prepare_decay(q: Tensor, k: Tensor, context: Context) -> Any:
    """Returns what :func:`decay_bias` and :func:`decay_scores` of all blocks of queries need.

    Args:
        q: all queries, as returned by :meth:`Encoding.forward`.
        k: all keys, likewise, preceded by those of earlier calls.
        context: the context with ``log_decay``.
    """
    decay = context.log_decay
    index = context.q_offset
    if decay is None:
        return None
    if not is_of_features(decay):
        return None if is_constant(decay) else to_float64(finite_log_decay(decay)).cumsum(-1)
    if is_constant(decay):
        if is_consecutive(index):
            return decayed_products(decay, q, k)
        decay = decay_of_keys(decay, index.key_positions, context.key_padding_mask)
    return gated_products(decay)


def decay_bias(q: Tensor, k: Tensor, context: Context) -> Tensor | None:
    """Returns the term that a decay of heads adds to the scores of a block, or None if there is none.

    The arguments and the result are those of :meth:`Encoding.bias`.
    """
    decay = context.log_decay
    q_offset = context.q_offset
    if decay is None or is_of_features(decay):
        return None
    queries = q.size(-2)
    keys = k.size(-2)
    if not is_constant(decay):
        return gate_bias(context.prepared, queries, keys, context.first_row(q, k), q.dtype)
    if is_consecutive(q_offset):
        distance = torch.arange(q_offset + queries - 1, -1, -1, device=decay.device)
    else:
        distance = distance_table(_preceding, (), queries, keys, q_offset, True, decay.device)
    bias = (finite_log_decay(decay)[:, None] * distance).to(q.device, q.dtype)
    return expand_distances(bias, queries, keys, q_offset)


def decay_scores(scale: float, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
    """Returns the scaled scores (B, H, Lq, Lk) of a block if features decay, otherwise None."""
    if context.log_decay is None or not is_of_features(context.log_decay):
        return None
    return context.prepared(scale * q, k, context.first_row(q, k))


def _preceding(distance):
    """Returns the distances to preceding keys, with 0 for keys after the query, which are masked."""
    return distance.clamp(min=0)
