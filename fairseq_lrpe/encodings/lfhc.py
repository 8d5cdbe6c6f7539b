"""Low-level fine-grained, high-level coarse-grained embedding (LFHC)."""

from fairseq_lrpe.encodings.base import check_choice, register_encoding
from fairseq_lrpe.encodings.shaw import Shaw


@register_encoding(
    "lfhc",
    k="number of LFHC's vectors on either side",
    rounding="how LFHC rounds a distance divided by the layer: away (from zero), or floor, as in its paper",
    per_head="use separate LFHC vectors for each head",
)
class LFHC(Shaw):
    """Adds q_i·w_{clip^l(i−j, k)} / √d: Shaw's encoding with clip^l of Qu et al. 2021, Eq. 9, in layer l.

    clip^l(x, k) is x/l, rounded, for −kl ≤ x ≤ kl, and k or −k beyond: one vector covers l distances, so that
    higher layers see further with the same number of parameters. Layer 1 is Shaw's encoding.

    Eq. 9 has ⌊x/l⌋ in both of its middle cases, x ≥ 0 and x < 0, which would make them one case. The author's
    public code (menghuanlater/mt-llm-code, others/RPEBERT.py) uses sign(x)·⌈|x|/l⌉, so that only the token
    itself is at level 0, and separate vectors for each head. Therefore ``rounding`` defaults to "away", and
    the paper's tables are run with ``per_head``. Nothing is added to the values, because Eq. 5 covers only
    the keys. Same cost as Shaw's encoding.
    """

    def __init__(self, *, k: int = 16, rounding: str = "away", per_head: bool = False, **shared):
        check_choice("rounding", rounding, ("away", "floor"))
        super().__init__(k=k, per_head=per_head, **shared)
        self.width = self.layer
        self.rounding = rounding
