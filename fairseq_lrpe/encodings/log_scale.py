"""Queries that grow with the logarithm of their position."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.ops.position_index import coordinates


@register_encoding(
    "log_scale",
    length="number of positions after which log-scaled queries grow",
    factor="growth of log-scaled queries with the logarithm of the position",
)
class LogScale(Encoding):
    """Multiplies the query at position s by 1 + f·ln(⌊(s + 1)/N⌋ + 1), with ``factor`` f and ``length`` N.

    The factor is the temperature of the layers without RoPE in Llama 4, with f = 0.1 and N = 8192
    (transformers, modeling_llama4.py), after scalable softmax (Nakanishi 2025): a softmax over more than N
    keys stays as sharp as one over N keys. In linear attention, a denominator or a norm cancels the factor.
    The encoding has no parameters.

    Raises:
        ValueError: if the length is below 1, or the factor is negative.
    """

    uses_absolute_positions = True

    def __init__(self, *, length: int = 8192, factor: float = 0.1, **shared):
        super().__init__(**shared)
        if length < 1 or factor < 0:
            raise ValueError(
                "log_scale needs a length of at least 1 and a factor of at least 0, not "
                f"{length} and {factor}"
            )
        self.length = length
        self.factor = factor

    def forward(self, q: Tensor, k: Tensor, context: Context = START) -> tuple[Tensor, Tensor]:
        position = coordinates(context.q_offset, q.size(-2), q.device)
        scale = 1 + self.factor * torch.log1p(torch.floor((position + 1) / self.length))
        return q * scale.to(q.device, q.dtype), k
