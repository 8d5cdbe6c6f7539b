"""What linear and softmax self-attention share: projections, heads, and fairseq's incremental state."""

import math

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fairseq_lrpe.encodings import Encoding
from fairseq_lrpe.ops.places import Places


@with_incremental_state
class SelfAttention(nn.Module):
    """Stands in for ``fairseq.modules.MultiheadAttention`` as a layer's ``self_attn``.

    A subclass says in :meth:`attend` what becomes of q, k and v.

    Args:
        encoding: a :class:`fairseq_lrpe.encodings.Encoding`; knows the heads and whether attention is causal.
    """

    prefix_state = None
    """An incremental state to fill while the caller passes none: see the decoder."""

    before = None
    """(M, B, E), what stands before the first key: see the decoder's layer."""

    carries, carried = False, None
    """Whether the state after a call is for the next, whose positions start at 0 again; and that state."""

    places: Places | None = None
    """Where the tokens stand, if they do not follow one another; not for causal attention."""

    segment, memory_length = 0, None
    """While decoding: the length of segments, if not 0, and of what each sees before it; None is all."""

    def __init__(self, encoding: Encoding):
        super().__init__()
        self.encoding = encoding
        self.num_heads = encoding.num_heads
        self.head_dim = encoding.head_dim
        self.causal = encoding.causal
        embed_dim = self.num_heads * self.head_dim
        projections = [nn.Linear(embed_dim, embed_dim) for _ in range(4)]
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = projections
        # As fairseq's own attention starts, so that models differ in their encoding alone.
        for projection in projections[:3]:
            nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def attend(self, q, k, v, key_padding_mask, past, q_offset, k_offset, keep_state, steps):
        """Returns the heads' outputs, like q (B, H, Lq, d), and a dict, the next call's state.

        k, v are (B, H, Lk, d). ``past`` is the state of the former call or None, ``k_offset`` the number of
        positions it covers; without ``keep_state`` nobody will read the state. ``steps`` are the encoding's
        for these keys, or None.
        """
        raise NotImplementedError

    def reordered(self, past: dict, order: Tensor) -> dict:
        """Returns the state in which row i goes on from what was row ``order[i]``."""
        return tree_map_only(torch.Tensor, lambda x: x.index_select(0, order), past)

    def moved(self, past: dict, steps: int) -> dict:
        """Returns the state as if its positions were ``steps`` smaller; ValueError if that cannot be."""
        raise ValueError(f"{type(self).__name__} keeps all positions: its state has no constant size")

    def merge(self, o: Tensor) -> Tensor:
        """Joins the heads: (B, H, L, d) -> (L, B, H·d)."""
        return o.permute(2, 0, 1, 3).flatten(2)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        **_,
    ) -> tuple[Tensor, None]:
        """Returns (Lq, B, E) for a query (Lq, B, E), and None where fairseq's attention returns its weights.

        ``key`` (Lk, B, E) is the query, or more: what came before it, and then the query. ``value`` is the
        key; ``key_padding_mask`` (B, Lk) is True at padding; fairseq's ``attn_mask`` is not needed, for the
        module knows whether it is causal. With an ``incremental_state`` the Lk positions follow those of the
        calls before. ValueError for fewer keys than queries.
        """
        if incremental_state is None:
            incremental_state = self.prefix_state
        saved = self._get_input_buffer(incremental_state) or self._start(self.carried)
        if 0 < self.segment == saved["within"]:
            saved = self._next_segment(saved)
        key, memory = query if key is None else key, self.before
        if saved["past"] is None and saved["read"] is not None:
            memory = saved["read"].transpose(0, 1)
        parts = [key]
        if memory is not None:
            parts = [memory, key]  # apart, so that none of the memory's gradient is computed
            if key_padding_mask is not None:
                key_padding_mask = F.pad(key_padding_mask, (len(memory), 0))
        keys = sum(map(len, parts))
        before = keys - len(query)
        if before < 0:
            raise ValueError(f"the last keys are the queries' own: {keys} are too few for {len(query)}")
        q = self._project(self.q_proj, [query])
        k, v = self._project(self.k_proj, parts), self._project(self.v_proj, parts)
        steps, inputs = self._steps(parts, key_padding_mask, saved["inputs"])
        keep_state = incremental_state is not None or self.carries
        past, offset = saved["past"], saved["offset"]
        starts = (offset + before, offset) if self.places is None else (self.places, self.places)
        o, state = self.attend(q, k, v, key_padding_mask, past, *starts, keep_state, steps)
        if self.carries:
            self.carried = self.moved(state, keys)
        elif keep_state:
            saved = {
                "past": state,
                "offset": offset + keys,
                "within": saved["within"] + len(query),
                "read": self._read(saved["read"], query),
                "inputs": inputs,
            }
            self.set_incremental_state(incremental_state, "attention", saved)
        return self.out_proj(self.merge(o).to(query.dtype)), None

    def _project(self, projection, parts):
        """(B, H, n, d) of parts (n', B, E) of a sequence."""
        x = projection(parts[0]) if len(parts) == 1 else torch.cat([projection(x) for x in parts])
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _steps(self, parts, padding, before):
        """The encoding's steps of the inputs, if it has any, and the last inputs, for the next call."""
        back = self.encoding.looks_back
        if back is None:
            return None, None
        x = torch.cat(parts)
        if padding is not None:
            x = x.masked_fill(padding.T[..., None], 0.0)
        x = torch.cat([x.new_zeros(back, *x.shape[1:]) if before is None else before.transpose(0, 1), x])
        steps = self.encoding.steps(x)
        if padding is not None:
            steps = steps.masked_fill(padding[:, None, :, None], 0.0)
        return steps, x[len(x) - back :].transpose(0, 1)

    def _start(self, past=None, read=None):
        """What is saved before a first position: past of the attention, and what it has read for a memory."""
        return {"past": past, "offset": 0, "within": 0, "read": read, "inputs": None}

    def _next_segment(self, saved):
        if self.memory_length is None:
            return self._start(self.moved(saved["past"], saved["offset"]))
        return self._start(read=saved["read"][:, -self.memory_length :])

    def _read(self, before, query):
        """All of a segment and its memory, (B, n, E), where the next segment needs it."""
        if not (self.segment and self.memory_length):
            return None
        query = query.transpose(0, 1)
        return query if before is None else torch.cat([before, query], dim=1)

    def _get_input_buffer(self, incremental_state):
        return self.get_incremental_state(incremental_state, "attention")

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Lets row i go on from what was row ``new_order[i]``, in beam search."""
        saved = self._get_input_buffer(incremental_state)
        if saved is not None:
            rows = {name: saved[name] for name in ("read", "inputs") if saved[name] is not None}
            rows = {name: x.index_select(0, new_order) for name, x in rows.items()}
            saved = {**saved, "past": self.reordered(saved["past"], new_order), **rows}
            self.set_incremental_state(incremental_state, "attention", saved)
