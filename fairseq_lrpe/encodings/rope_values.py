"""RoPE on queries, keys and values."""

from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import ValuesMixin
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("rope_values")
class RoPEValues(ValuesMixin, RoPE):
    """RoPE that also rotates the values by their positions (Su 2021, survey, after Eq. 17).

    The output is o_i = Σ_j a_ij RoPE(v_j, j). Scores are relative, as with RoPE, but the output also depends
    on the absolute positions of the keys; RoPER rotates the output back by the position of the query. The
    encoding has no parameters and takes O(L d) time.
    """

    uses_absolute_positions = True

    def encode_values(self, v: Tensor, context: Context = START) -> Tensor:
        return self.encode(v, self.position_table(v, context.k_offset))
