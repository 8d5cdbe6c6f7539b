"""A recurrent network before the first layer, instead of position embeddings."""

import math

import torch
from torch import Tensor, nn

from fairseq_lrpe.positions.base import AbsolutePosition, register_position


@register_position("rnn")
class RNN(AbsolutePosition):
    """Replaces the embeddings by the states of a GRU that reads them.

    Su's survey of 2021 ("Recurrent") proposes a recurrent network before the first layer: it can count, so no
    position embeddings are needed. Neishi and Yoshinaga 2019 use one in place of the positional
    encoding of a Transformer. The output at token i is

        h_i = GRU(x_i, h_{i−1}),  h_{−1} = 0

    if causal. Otherwise, it is [h_i; g_i], where h is the state of a GRU of width E/2 that reads forwards and
    g that of one that reads backwards. It is our choice to use one layer and a GRU, as in fairseq's
    examples/byte_level_bpe/gru_transformer.py. Padding does not change the states. Parameters are initialized
    as in nn.GRU. The argument ``positions`` is ignored.

    Parameters are those of ``forward_rnn``, an nn.GRU, and of ``backward_rnn``, if not causal. The time is
    O(L E²), with L sequential steps. The state for decoding is h (B, E).

    Raises:
        ValueError: if the embedding dimension is odd, unless causal.
    """

    left_context = math.inf

    def __init__(self, **shared):
        super().__init__(**shared)
        if self.embed_dim % 2 and not self.causal:
            raise ValueError(f"rnn needs an even embedding dimension in an encoder, not {self.embed_dim}")
        self.right_context = 0 if self.causal else math.inf
        width = self.embed_dim if self.causal else self.embed_dim // 2
        self.forward_rnn = nn.GRU(self.embed_dim, width, batch_first=True)
        self.backward_rnn = None if self.causal else nn.GRU(self.embed_dim, width, batch_first=True)

    def forward(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        is_token = tokens.ne(self.padding_idx)
        states = self._read(self.forward_rnn, x, is_token)
        if self.causal:
            return states
        reversed_states = self._read(self.backward_rnn, x.flip(1), is_token.flip(1))
        return torch.cat([states, reversed_states.flip(1)], dim=-1)

    def step(
        self, x: Tensor, positions: Tensor, tokens: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        states = self._read(self.forward_rnn, x, tokens.ne(self.padding_idx), state)
        return states, states[:, -1].clone()  # a view would keep the states of the whole prompt

    @staticmethod
    def _read(rnn, x, is_token, state=None):
        """Returns the state (B, L, width) after each row of x; padding leaves the state unchanged."""
        if not is_token.size(1):
            return x[..., :1].expand(*x.shape[:2], rnn.hidden_size)
        inputs = x.to(rnn.weight_ih_l0.dtype)
        state = inputs.new_zeros(x.size(0), rnn.hidden_size) if state is None else state.to(inputs.dtype)
        # Tokens are moved before padding, and the state after i tokens is looked up for each row.
        tokens_first = is_token.logical_not().int().argsort(dim=1, stable=True).unsqueeze(-1)
        states, _ = rnn(inputs.take_along_dim(tokens_first, dim=1), state.unsqueeze(0))
        states = torch.cat([state.unsqueeze(1).to(states.dtype), states], dim=1)
        return states.take_along_dim(is_token.cumsum(1).unsqueeze(-1), dim=1).to(x.dtype)
