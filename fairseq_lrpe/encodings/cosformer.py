"""cosFormer's cosine re-weighting."""

from torch import Tensor

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.table import TableEncoding
from fairseq_lrpe.ops.position_index import PositionIndex, as_positions
from fairseq_lrpe.ops.rotation import cached_phases, complex_dtype, complex_features


@register_encoding("cosformer")
class CosFormer(TableEncoding):
    """Multiplies q_i·k_j by cos(π(i−j) / 2M) (Qin et al. 2022; LRPE ICLR Eq. 36).

    At position s, x is encoded as [cos(πs/2M) x, sin(πs/2M) x], of width 2d. M is ``max_positions``. Weights
    are positive at distances below M, and negative beyond, where denominators could vanish: positions from M
    on are refused, and so are shifts of keys, whose distances to later queries are unknown. The encoding has
    no parameters and takes O(L d) time; its doubled width doubles the time of linear attention.

    Raises:
        ValueError: for positions from M on.
    """

    def position_table(self, x: Tensor, offset: int | PositionIndex) -> Tensor:
        last = as_positions(offset).end(x.size(-2)) - 1
        if last >= self.max_positions:
            raise ValueError(
                f"cosformer has positive weights within its {self.max_positions:,} positions, and position "
                f"{last:,} is beyond them: use shorter inputs, or train with a larger max_positions"
            )
        # The angles of type "b" with count 1 are the single angle π/2M.
        angle_arguments = ("b", 1, 1, self.max_positions)
        return cached_phases(angle_arguments, offset, x.size(-2), complex_dtype(x), x.device)

    def encode(self, x: Tensor, table: Tensor) -> Tensor:
        return complex_features(x, table)

    def shift_keys(self, k: Tensor, shift: int) -> Tensor:
        raise ValueError(
            "cosformer cannot shift the positions of encoded keys, because its weights are positive only at "
            f"distances below its max_positions {self.max_positions:,}"
        )
