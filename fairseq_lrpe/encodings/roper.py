"""RoPER: rotary embeddings with relative positions in the values."""

from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import ValuesMixin
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("roper")
class RoPER(ValuesMixin, RoPE):
    """RoPE that also rotates values by their positions, and outputs back (Harik and Jayasiri 2022).

    The output is o_i = Σ_j a_ij RoPE(v_j, j−i), so that values encode their distance to the query. The
    encoding has no parameters and takes O(L d) time.
    """

    def encode_values(self, v: Tensor, context: Context = START) -> Tensor:
        return self.encode(v, self.position_table(v, context.k_offset))

    def decode_output(self, o: Tensor, context: Context = START, weights: Tensor | None = None) -> Tensor:
        return self.encode(o, self.position_table(o, context.q_offset).conj())

    def shift_values(self, v: Tensor, shift: int) -> Tensor:
        return self.shift_keys(v, shift)
