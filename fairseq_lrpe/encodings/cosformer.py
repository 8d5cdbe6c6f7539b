"""cosFormer's cosine re-weighting."""

from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.rotation import complex_dtype, complex_features, fixed_phases, turn_halves


@register_encoding("cosformer")
class CosFormer(Encoding):
    """Multiplies q_i·k_j by cos(π(i−j) / 2M) (Qin et al. 2022; LRPE ICLR Eq. 36).

    x̃_s = [cos(πs/2M) x, sin(πs/2M) x], two copies of the features, width 2d. M is ``max_positions``: up to
    that distance weights are positive. O(L d); linear attention then costs twice as much. No parameters.
    """

    def _phases(self, x, offset, length):
        # One angle for all features: b's ladder with a single step, π/2M.
        ladder = ("b", 1, 1, self.max_positions)
        return fixed_phases(ladder, offset, length, complex_dtype(x), x.device)

    def _encode(self, x, offset):
        return complex_features(x, self._phases(x, offset, x.size(-2)))

    def forward(self, q: Tensor, k: Tensor, q_offset: int = 0, k_offset: int = 0) -> tuple[Tensor, Tensor]:
        return self._encode(q, q_offset), self._encode(k, k_offset)

    def earlier(self, k: Tensor, steps: int) -> Tensor:
        return turn_halves(k, self._phases(k, steps, 1).conj())
