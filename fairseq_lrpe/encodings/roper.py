"""Rotary embeddings with relative distances in the values."""

from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("roper")
class RoPER(RoPE):
    """Turns q and k as RoPE does, v by +s too, and the output by −s (Harik and Jayasiri 2022).

    So o_i = Σ_j a_ij RoPE(v_j, j−i): the values carry their distance to the query. O(L d); no parameters.
    """

    def encode_values(self, v: Tensor, offset: int = 0) -> Tensor:
        return self.rotate(v, offset)

    def decode_output(self, o: Tensor, offset: int = 0) -> Tensor:
        return self.rotate(o, offset, backwards=True)

    def earlier_values(self, v: Tensor, steps: int) -> Tensor:
        return self.earlier(v, steps)
