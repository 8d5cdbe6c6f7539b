"""DeBERTa's disentangled attention."""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.encodings.mixins import ScoresMixin
from fairseq_lrpe.ops.layers import embedding_rows
from fairseq_lrpe.ops.position_index import is_consecutive
from fairseq_lrpe.ops.relative import distance_slice, distance_table, relative_shift


def relative_index(distance: Tensor, k: int, sign: int) -> Tensor:
    """Returns g(sign·(i − j)), where g(x) is x + k clipped to 0..2k−1 (LRPE TMLR Eq. 31 with c = ``k``)."""
    return (sign * distance + k).clamp(0, 2 * k - 1)


@register_encoding("deberta", k="DeBERTa's maximum distance, which is half the number of its embeddings")
class DeBERTa(ScoresMixin, Encoding):
    """Adds content-to-position and position-to-content scores (He et al. 2021; LRPE TMLR Eq. 31).

    Scores become (q_i·k_j + q_i·k^r_{g(i−j)} + k_j·q^r_{g(j−i)}) / √(3d). k^r and q^r are two projections of
    2k relative embeddings of the model's width; g(x) is x + k, clipped to 0..2k−1. The authors' code, and
    that of Hugging Face, has g(i−j) in the last term, too. The added scores take O(L²·d) time.
    """

    decomposable = False
    uses_distance_table = True

    def __init__(self, *, k: int = 512, **shared):
        super().__init__(**shared)
        if k < 1:
            raise ValueError(f"deberta needs a maximum distance k of at least 1, not {k}")
        width = self.num_heads * self.head_dim
        self.k = k
        self.scale = (3 * self.head_dim) ** -0.5
        self.rel_embeddings = nn.Embedding(2 * k, width)
        self.pos_key = nn.Linear(width, width, bias=False)
        self.pos_query = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.rel_embeddings.weight, std=0.02)
        nn.init.xavier_uniform_(self.pos_key.weight)
        nn.init.xavier_uniform_(self.pos_query.weight)

    def prepare(self, q: Tensor, k: Tensor, context: Context) -> Any:
        key_distances = q.size(-2), k.size(-2), context.q_offset, self.causal
        query_distances = q.size(-2), k.size(-2), context.q_offset, False
        to_key = self._project_distances(self.pos_key, q.device, 1, *key_distances)
        to_query = self._project_distances(self.pos_query, q.device, -1, *query_distances)
        return to_key, key_distances, to_query, query_distances

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        to_key, key_distances, to_query, query_distances = context.prepared
        queries = q.size(-2)
        keys = k.size(-2)
        q_offset = context.q_offset
        columns = distance_slice(key_distances, queries, keys, q_offset, self.causal)
        content_to_position = relative_shift((q * self.scale) @ to_key[..., columns], keys, q_offset)
        if not is_consecutive(q_offset):
            index = q_offset.distance_index().mT.expand(*k.shape[:-1], queries)
            return content_to_position + ((k * self.scale) @ to_query).gather(-1, index).mT

        # Position-to-content scores have keys as rows; reversing rows and columns keeps the distances i − j
        # in decreasing order. Keys are processed in blocks, because otherwise each key would be multiplied
        # with the distances of all keys, even if there are only a few queries.
        block_size = max(queries, 64)
        blocks = []
        for start in range(0, keys, block_size):
            block = k[:, :, start : start + block_size].flip(-2) * self.scale
            columns = distance_slice(query_distances, queries, block.size(-2), q_offset - start, False)
            blocks.append(relative_shift(block @ to_query[..., columns], queries).flip(-2, -1))
        return content_to_position + torch.cat(blocks, dim=-2).mT

    def _project_distances(self, projection, device, sign, queries, keys, q_offset, causal):
        """Returns the projected embeddings (H, d, W) of the distances of a score matrix."""
        options = (self.k, sign)
        distances = queries, keys, q_offset, causal
        rows = distance_table(relative_index, options, *distances, device, clamp=self.clamp_length)
        embeddings = embedding_rows(self.rel_embeddings, 2 * self.k, device)
        select_first = len(rows) < len(embeddings)
        projected = projection(embeddings[rows]) if select_first else projection(embeddings)[rows]
        return projected.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0)
