"""p-RoPE: rotary position embedding of the highest frequencies."""

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.rope import RoPE


@register_encoding("p_rope", p="fraction p of RoPE's frequencies, the highest ones, that p-RoPE keeps")
class PRoPE(RoPE):
    """RoPE of the first ⌊p·d/2⌋ pairs of features, which have the highest frequencies (Barbero et al. 2025).

    The other pairs are not rotated, so that no position affects their part of the scores. As in the paper's
    listing, the frequencies are those of RoPE, 10000^(-2t/d) with t < ⌊p·d/2⌋. The encoding has no parameters
    and takes O(L d) time.

    Raises:
        ValueError: if p is not in (0, 1], or so small that no pair is rotated.
    """

    def __init__(self, *, p: float = 0.75, **shared):
        super().__init__(**shared)
        # 49 · (1/49) is below 1
        self.p = p
        self.pairs = int(p * self.pairs + 1e-9)
        if not 0 < p <= 1 or not self.pairs:
            raise ValueError(
                f"p_rope needs a p from 1/{self.head_dim // 2} to 1, to keep a frequency, not {p}"
            )
