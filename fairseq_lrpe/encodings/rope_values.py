"""RoPE on queries, keys and values."""

from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("rope_values")
class RoPEValues(RoPE):
    """RoPE that also rotates v at position s by +s (Su 2021, survey of position encodings, after Eq. 17).

    The output is o_i = Σ_j a_ij RoPE(v_j, j). Scores are relative, as with RoPE, but the output also depends
    on the absolute positions of the keys; RoPER rotates it back by the position of the query. The encoding
    has no parameters and takes O(L d) time.
    """

    relative = False  # scores are relative, but the output is not
    uses_absolute_positions = True

    def encode_values(self, v: Tensor, offset: int = 0) -> Tensor:
        return self.rotate(v, offset)
