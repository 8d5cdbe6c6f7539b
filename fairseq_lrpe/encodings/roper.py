"""Rotary embeddings with relative distances in the values."""

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("roper")
class RoPER(RoPE):
    """RoPE on q and k, on v by +s and on the output by −s (Harik and Jayasiri 2022).

    So o_i = Σ_j a_ij RoPE(v_j, j−i): the values carry their distance to the query. O(L d); no parameters.
    """

    def encode_values(self, v, offset=0):
        return self.rotate(v, offset)

    def decode_output(self, o, offset=0):
        return self.rotate(o, offset, backwards=True)
