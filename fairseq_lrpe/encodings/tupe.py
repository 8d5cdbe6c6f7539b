"""TUPE's untied positions."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.t5 import relative_bucket
from fairseq_lrpe.ops.places import Places
from fairseq_lrpe.ops.relative import distance_table, spread

BUCKETS, MAX_DISTANCE = 32, 128
"""Of TUPE-R's relative bias, as T5's."""


@register_encoding(
    "tupe",
    cls="TUPE's first token, where attention is not causal, has scores of its own in place of its position's",
    relative_bias="add T5's relative bias to TUPE's scores: TUPE-R, else TUPE-A",
)
class TUPE(Encoding):
    """Adds to a score that of positions alone, untied from the tokens' (Ke et al. 2021, Sec. 3).

    The scaled scores become (x_i W_Q · x_j W_K + p_i U_Q · p_j U_K) / √(2d). p is a learned table of
    ``max_positions`` rows of the model's width E = H·d, which goes through a LayerNorm; U_Q and U_K (E, E)
    have a bias. With ``relative_bias`` b_{bucket(j−i)} is added, unscaled as T5's, of 32 buckets up to 128
    (TUPE-R). One module is for all layers. Tokens have no other positions: ``--token-positions none``.

    ``cls`` is for a first token that stands for all of the text, as <s> does, and applies where attention is
    not causal (Sec. 3.2): the score of its position is θ₁ where it is the query, and θ₂ where it is the key
    of another. As in the authors' code (guolinke/TUPE) two rows of the table, one before the positions' and
    that of position 0, go through LayerNorm, U_Q and U_K to give θ = q·k / √(2d); the relative bias is
    bucket 16 in the first token's row, which no distance has, and a bucket of its own in its column.
    Translation and pictures, which begin with no such token, have it off; a classifier of the mean or the
    maximum of its tokens has no such token either, and wants ``--no-tupe-cls``.

    O(L²·d) for all of a batch together, and O(L·E²) for the rows of the table that are in use, of a decoding
    step O(L·E·H). ValueError for a position beyond the table.
    The authors' model normalizes the embeddings too, with ``--layernorm-embedding`` where a family has it.
    """

    decomposable = False
    relative = False
    absolute = True
    limited = True
    shared_by_layers = True

    def __init__(self, *, cls: bool = True, relative_bias: bool = False, **shared):
        super().__init__(**shared)
        self.cls, self.relative_bias = cls and not self.causal, relative_bias
        self.scale = (2 * self.head_dim) ** -0.5
        width = self.num_heads * self.head_dim
        self.positions = nn.Embedding(self.max_positions + self.cls, width)
        self.norm = nn.LayerNorm(width)
        self.to_query, self.to_key = nn.Linear(width, width), nn.Linear(width, width)
        if relative_bias:
            self.buckets = nn.Embedding(BUCKETS + self.cls, self.num_heads)
        for module in self.children():
            if module is not self.norm:
                nn.init.normal_(module.weight, std=0.02)
        for projection in (self.to_query, self.to_key):
            nn.init.zeros_(projection.bias)

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor:
        return self.bias_in_parts(q, k, q_offset)(q, k, q_offset)

    def bias_in_parts(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Callable[..., Tensor]:
        if isinstance(q_offset, Places):
            first, end, last = 0, q_offset.last + 1, q_offset.last
        else:
            first, end = q_offset, q_offset + q.size(-2)
            last = max(end, k.size(-2)) - 1
        if last >= self.max_positions:
            raise ValueError(
                f"tupe has a table of {self.max_positions:,} positions, and position {last:,} is beyond it: "
                "give shorter inputs, or train with more --max-positions, --max-source-positions or "
                "--max-target-positions"
            )
        rows, resets = self.norm(self.positions.weight[: last + 1 + self.cls]), None
        if self.cls:
            at_q, at_k = self._heads(self.to_query, rows[:2]), self._heads(self.to_key, rows[:2])
            resets, rows = self.scale * (at_q * at_k).sum(-1), rows[1:]
        at_q = self.scale * self._heads(self.to_query, rows[first:end])
        return functools.partial(self._bias, first, *self._factors(at_q, rows), resets)

    def _heads(self, projection, rows):
        """(L, E) -> (H, L, d)."""
        return projection(rows).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)

    def _factors(self, at_q, rows):
        """Whose product (H, Lq, L) has the score of each of these queries (H, Lq, d) with each row (L, E)."""
        if at_q.size(1) * self.num_heads >= rows.size(1):
            return at_q, self._heads(self.to_key, rows).mT
        # For a step of decoding it costs less to bring its query before U_K than all rows behind it.
        projection = torch.cat([self.to_key.weight, self.to_key.bias[:, None]], dim=1)
        return at_q @ projection.unflatten(0, (self.num_heads, -1)), F.pad(rows, (0, 1), value=1.0).T

    def _bias(self, first, at_q, at_k, resets, q, k, q_offset=0):
        queries, keys = q.size(-2), k.size(-2)
        if isinstance(q_offset, Places):
            i, j = q_offset.index, q_offset.keys
            bias = at_q[:, i] @ at_k[..., j]
        else:
            i = torch.arange(q_offset, q_offset + queries, device=q.device)
            j = torch.arange(keys, device=q.device)
            bias = at_q[:, q_offset - first : q_offset - first + queries] @ at_k[..., :keys]
        if self.relative_bias:
            options = (self.causal, BUCKETS, MAX_DISTANCE)
            bucket = distance_table(relative_bucket, options, queries, keys, q_offset, self.causal, q.device)
            bias = bias + spread(self.buckets(bucket).T, queries, keys, q_offset)
        if self.cls:
            if self.relative_bias:
                resets = resets + self.buckets.weight[[BUCKETS // 2, BUCKETS]].T
            to_all, to_first = resets.T[..., None, None]
            bias = torch.where(i[:, None] == 0, to_all, torch.where(j == 0, to_first, bias))
        return bias.unsqueeze(0)
