"""TUPE's untied positions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, at_positions, register_encoding
from fairseq_lrpe.encodings.t5 import relative_bucket
from fairseq_lrpe.ops.places import Places
from fairseq_lrpe.ops.relative import distance_table, spread

BUCKETS, MAX_DISTANCE = 32, 128
"""Of TUPE-R's relative bias, as T5's."""

_RESETS = 8
"""Features that carry the two resets: two, and zeros up to what kernels of half precision need."""


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

    q and k become [x W, p U], 2d wide, and 8 wider with ``cls``: O(L²·2d). The L rows of the table that are
    in use are projected, O(L·E²), for all of a batch together. ValueError for a position beyond the table.
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

    def forward(self, q: Tensor, k: Tensor, q_offset: int = 0, k_offset: int = 0) -> tuple[Tensor, Tensor]:
        rows_q, rows_k = at_positions(self._rows, q, k, q_offset, k_offset)
        at_q, at_k = self._heads(self.to_query, rows_q), self._heads(self.to_key, rows_k)
        if self.cls:
            ends = self.norm(self.positions.weight[:2])
            to_all, to_first = (self._heads(self.to_query, ends) * self._heads(self.to_key, ends)).sum(-1).T
            first_q, first_k = (self._first(x, at) for x, at in ((q, q_offset), (k, k_offset)))
            at_q = self._with_resets(at_q, first_q, first_q.to(q.dtype), ~first_q * to_first[:, None])
            at_k = self._with_resets(at_k, first_k, to_all[:, None], first_k.to(k.dtype))
        return tuple(
            torch.cat([x, at.expand(len(x), -1, -1, -1)], dim=-1) for x, at in ((q, at_q), (k, at_k))
        )

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor | None:
        if not self.relative_bias:
            return None
        queries, keys = q.size(-2), k.size(-2)
        options = (self.causal, BUCKETS, MAX_DISTANCE)
        bucket = distance_table(relative_bucket, options, queries, keys, q_offset, self.causal, q.device)
        bias = spread(self.buckets(bucket).T, queries, keys, q_offset)
        if self.cls:
            of_keys = q_offset._replace(index=q_offset.keys) if isinstance(q_offset, Places) else 0
            from_first, to_first = self.buckets.weight[[BUCKETS // 2, BUCKETS]][..., None, None]
            bias = torch.where(self._first(k, of_keys), to_first, bias)
            bias = torch.where(self._first(q, q_offset)[:, None], from_first, bias)
        return bias.unsqueeze(0)

    @property
    def biased(self) -> bool:
        return self.relative_bias

    def _rows(self, x, offset):
        """The normalized rows of the table at the positions of x, (L, E)."""
        placed = isinstance(offset, Places)
        last = offset.last if placed else offset + x.size(-2) - 1
        if last >= self.max_positions:
            raise ValueError(
                f"tupe has a table of {self.max_positions:,} positions, and position {last:,} is beyond it: "
                "give shorter inputs, or train with more --max-positions, --max-source-positions or "
                "--max-target-positions"
            )
        index = offset.index if placed else slice(int(self.cls) + offset, int(self.cls) + last + 1)
        return self.norm(self.positions.weight[index + int(self.cls) if placed else index])

    def _heads(self, projection, rows):
        """(L, E) -> (H, L, d)."""
        return projection(rows).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)

    def _first(self, x, offset):
        """Which rows of x stand at position 0, (L,)."""
        if isinstance(offset, Places):
            return offset.index == 0
        return torch.arange(offset, offset + x.size(-2), device=x.device) == 0

    def _with_resets(self, at, first, *columns):
        """(H, L, d) without the first token, and with columns, broadcastable to (H, L), behind it."""
        columns = torch.stack([x.expand(at.shape[:2]) for x in columns], dim=-1)
        return torch.cat([at.masked_fill(first[:, None], 0), F.pad(columns, (0, _RESETS - 2))], dim=-1)
