"""The data of a call of attention on which an encoding may depend, besides queries, keys and values."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lrpe.ops.position_index import PositionIndex, as_positions


class Context(NamedTuple):
    """Positions, padding and other data of a call of attention on which an encoding may depend.

    Attributes:
        q_offset: position of the first query, or a :class:`fairseq_lrpe.ops.position_index.PositionIndex` if
            positions are not consecutive.
        k_offset: position of the first key, or a ``PositionIndex`` whose ``query_positions`` are the
            positions of the keys.
        key_padding_mask: (B, Lk), True at padding, or None.
        features: the :meth:`InputsMixin.input_features` of the new keys, which are the last ones, or None.
        feature_sum: the sum of the features of all earlier keys, (B, H, 1, F) in float64, or None for 0.
        log_decay: in softmax attention, the result of :meth:`Encoding.log_decay`. A decay that depends on the
            input is that of all keys, also of cached ones.
        prepared: the result of :meth:`ScoresMixin.prepare`, or what the term of ``log_decay`` needs.
        device: device of the queries, on which constants of the encoding are cached.
    """

    q_offset: int | PositionIndex = 0
    k_offset: int | PositionIndex = 0
    key_padding_mask: Tensor | None = None
    features: Tensor | None = None
    feature_sum: Tensor | None = None
    log_decay: Tensor | None = None
    prepared: Any = None
    device: torch.device | str = "cpu"

    def block(self, start: int, count: int, keys: int | None = None) -> "Context":
        """Returns the context of ``count`` queries from ``start`` on and ``keys`` keys (default: all)."""
        return self._replace(q_offset=as_positions(self.q_offset).block(start, count, keys))

    def input_features(self) -> Tensor:
        """Returns the features; raises a ValueError if there are none."""
        if self.features is None:
            raise ValueError(
                "the encoding depends on the layer's inputs: use LinearAttention or SoftmaxAttention, or "
                "pass Context(features=encoding.input_features(x))"
            )
        return self.features

    def first_row(self, q: Tensor, k: Tensor) -> int:
        """Returns the index of the key at the position of the first query, for causal attention."""
        return as_positions(self.q_offset).first_row(q.size(-2), k.size(-2))


START = Context()
"""Context of a sequence that starts at position 0."""
