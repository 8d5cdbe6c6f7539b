"""TUPE: Transformer with untied positional encoding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.encodings.t5 import relative_bucket
from fairseq_lrpe.ops.layers import embedding_rows, is_unchanged
from fairseq_lrpe.ops.position_index import as_positions, is_consecutive
from fairseq_lrpe.ops.relative import distance_table, expand_distances

BUCKETS = 32
MAX_DISTANCE = 128
"""Number of buckets and maximum distance of TUPE-R's relative bias, which is that of T5."""


@register_encoding(
    "tupe",
    cls="give the first token separate position scores in TUPE, if attention is not causal",
    relative_bias="add T5's relative bias to TUPE's scores (TUPE-R instead of TUPE-A)",
)
class TUPE(ScoresMixin, Encoding):
    """Adds scores between absolute positions to the scores between tokens (Ke et al. 2021, Sec. 3).

    Scaled scores become (x_i W_Q · x_j W_K + p_i U_Q · p_j U_K) / √(2d). p is a learned table of
    ``max_positions`` rows of the model's width E = H·d, followed by a LayerNorm; U_Q and U_K (E, E) have a
    bias. With ``relative_bias``, b_{bucket(i−j)} is added, unscaled as in T5, with 32 buckets up to distance
    128 (TUPE-R). All layers share one module. Tokens have no other position embeddings.

    With ``cls``, bidirectional attention treats the first token separately, because a token such as ``<s>``
    represents the whole text (Sec. 3.2). Its position score is θ₁ if it is the query, and θ₂ if it is the key
    of another query. As in the authors' code (guolinke/TUPE), θ₁ and θ₂ are the scores of two table rows with
    themselves: of an additional row before position 0, and of the row of position 0. The relative bias of
    the first token is bucket 16, which no distance uses, if it is the query, and an additional bucket if it
    is the key. Turn ``cls`` off in models without such a token, such as those for translation and images, and
    in classifiers that pool over all tokens.

    For the whole batch, the bias takes O(L²·E) time, and projecting the table rows O(L·E²); a decoding step
    takes O(L·E·H) time. The authors' model also normalizes the embeddings of the tokens.

    Raises:
        ValueError: for a position beyond the table.
    """

    decomposable = False
    uses_absolute_positions = True
    shared_across_layers = True

    def __init__(self, *, cls: bool = True, relative_bias: bool = False, **shared):
        super().__init__(**shared)
        self.cls = cls and not self.causal
        self.relative_bias = relative_bias
        self.scale = (2 * self.head_dim) ** -0.5
        width = self.num_heads * self.head_dim
        self.positions = nn.Embedding(self.max_positions + self.cls, width)
        self.norm = nn.LayerNorm(width)
        self.to_query = nn.Linear(width, width)
        self.to_key = nn.Linear(width, width)
        if relative_bias:
            self.buckets = nn.Embedding(BUCKETS + self.cls, self.num_heads)
        for module in self.children():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        for projection in (self.to_query, self.to_key):
            nn.init.zeros_(projection.bias)

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        q_offset = context.q_offset
        end = as_positions(q_offset).end(q.size(-2))
        if not is_consecutive(q_offset):
            first = 0
            last = q_offset.max_position
        else:
            first = q_offset
            last = max(end, k.size(-2)) - 1
        if last >= self.max_positions:
            raise ValueError(
                f"tupe has a table of {self.max_positions:,} positions, and position {last:,} is beyond it: "
                "use shorter inputs, or train with a larger max_positions"
            )
        rows = self.norm(embedding_rows(self.positions, last + 1 + self.cls, q.device))
        cls_scores = None
        if self.cls:
            cls_q = self._project(self.to_query, rows[:2])
            cls_k = self._project(self.to_key, rows[:2])
            cls_scores = self.scale * (cls_q * cls_k).sum(-1)
            rows = rows[1:]
        position_q = self.scale * self._project(self.to_query, rows[first:end])
        return first, *self._factors(position_q, rows), cls_scores

    def _project(self, projection, rows):
        """Projects table rows and splits the heads: (L, E) -> (H, L, d)."""
        return projection(rows).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)

    def _factors(self, position_q, rows):
        """Factorizes the scores (H, Lq, L) of the queries with the table rows; returns the two factors.

        Args:
            position_q: projected positions of the queries (H, Lq, d).
            rows: normalized table rows (L, E).
        """
        if position_q.size(1) * self.num_heads >= rows.size(1) or not is_unchanged(self.to_key, nn.Linear):
            return position_q, self._project(self.to_key, rows).mT
        # In a decoding step, multiplying the only query by U_K is cheaper than multiplying all rows.
        projection = torch.cat([self.to_key.weight, self.to_key.bias[:, None]], dim=1)
        return position_q @ projection.unflatten(0, (self.num_heads, -1)), F.pad(rows, (0, 1), value=1.0).T

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        first, position_q, position_k, cls_scores = context.prepared
        queries = q.size(-2)
        keys = k.size(-2)
        q_offset = context.q_offset
        positions = as_positions(q_offset)
        i = positions.values(queries, q.device)
        j = positions.key_values(keys, q.device)
        if not is_consecutive(q_offset):
            bias = position_q[:, i] @ position_k[..., j]
        else:
            bias = position_q[:, q_offset - first : q_offset - first + queries] @ position_k[..., :keys]
        if self.relative_bias:
            options = (self.causal, BUCKETS, MAX_DISTANCE)
            bucket = distance_table(relative_bucket, options, queries, keys, q_offset, self.causal, q.device)
            bias = bias + expand_distances(self.buckets(bucket).T, queries, keys, q_offset)
        if self.cls:
            if self.relative_bias:
                special = torch.tensor([BUCKETS // 2, BUCKETS], device=q.device)
                cls_scores = cls_scores + self.buckets(special).T
            from_cls, to_cls = cls_scores.T[..., None, None]
            bias = torch.where(i[:, None] == 0, from_cls, torch.where(j == 0, to_cls, bias))
        return bias.unsqueeze(0)
