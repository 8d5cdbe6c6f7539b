"""What linear and softmax self-attention share: projections, heads, and fairseq's incremental state."""

import math

import torch
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import nn
from torch.utils._pytree import tree_map_only


@with_incremental_state
class SelfAttention(nn.Module):
    """Stands in for ``fairseq.modules.MultiheadAttention`` as a layer's ``self_attn``.

    A subclass says in :meth:`attend` what becomes of q, k and v.

    Args:
        encoding: a :class:`fairseq_lrpe.encodings.Encoding`; knows the heads and whether attention is causal.
    """

    prefix_state = None
    """An incremental state to fill while the caller passes none: see the decoder."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding
        self.num_heads = encoding.num_heads
        self.head_dim = encoding.head_dim
        self.causal = encoding.causal
        embed_dim = self.num_heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )
        # As fairseq's own attention starts, so that models differ in their encoding alone.
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def attend(self, q, k, v, key_padding_mask, past, offset, keep_state):
        """(B, H, L, d) three times -> the heads' outputs (B, H, L, d) and a dict, the next call's state.

        ``past`` is the state of the former call or None, ``offset`` the number of positions it covers;
        without ``keep_state`` nobody will read the state.
        """
        raise NotImplementedError

    def reordered(self, past, order):
        """The state in which row i goes on from what was row ``order[i]``."""
        return tree_map_only(torch.Tensor, lambda x: x.index_select(0, order), past)

    def merge(self, o):
        """(B, H, L, d) -> (L, B, H·d)."""
        return o.permute(2, 0, 1, 3).flatten(2)

    def forward(
        self,
        query,
        key=None,
        value=None,
        key_padding_mask=None,
        incremental_state=None,
        need_weights=False,
        attn_mask=None,
        **_,
    ):
        """(L, B, E) -> (L, B, E), and None where fairseq's attention returns its weights.

        ``key`` and ``value`` are the query; ``key_padding_mask`` (B, L) is True at padding; ``attn_mask`` is
        not needed: the module knows whether it is causal. With an ``incremental_state`` the L positions
        follow those of the calls before.
        """
        q, k, v = (
            projection(query).unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if incremental_state is None:
            incremental_state = self.prefix_state
        saved = self._get_input_buffer(incremental_state) or {"past": None, "offset": 0}
        keep_state = incremental_state is not None
        o, state = self.attend(q, k, v, key_padding_mask, saved["past"], saved["offset"], keep_state)
        if keep_state:
            saved = {"past": state, "offset": saved["offset"] + query.size(0)}
            self.set_incremental_state(incremental_state, "attention", saved)
        return self.out_proj(self.merge(o).to(query.dtype)), None

    def _get_input_buffer(self, incremental_state):
        return self.get_incremental_state(incremental_state, "attention")

    def reorder_incremental_state(self, incremental_state, new_order):
        """Beam search: row i goes on from what was row ``new_order[i]``."""
        saved = self._get_input_buffer(incremental_state)
        if saved is not None:
            saved = {**saved, "past": self.reordered(saved["past"], new_order)}
            self.set_incremental_state(incremental_state, "attention", saved)
