"""Low-level fine-grained, high-level coarse-grained embedding."""

from fairseq_lrpe.encodings.base import check_choice, register_encoding
from fairseq_lrpe.encodings.shaw import Shaw


@register_encoding(
    "lfhc",
    k="number of LFHC's vectors on either side",
    rounding="how LFHC rounds a distance over its layer: away (from zero), or floor, as its paper prints it",
    per_head="LFHC's vectors are each head's own",
)
class LFHC(Shaw):
    """Adds q_i·w_{clip^l(i−j, k)} / √d: Shaw's encoding with clip^l, Eq. 9 of Qu et al. 2021, in layer l.

    clip^l(x, k) is x/l, rounded, for −kl ≤ x ≤ kl, and k or −k beyond: a vector stands for l distances, so
    that higher layers see further with the same number of parameters. Layer 1 is Shaw's.

    Eq. 9 prints ⌊x/l⌋ in both of its middle cases, for x ≥ 0 and x < 0, which would make them one case. The
    public code of its author (menghuanlater/mt-llm-code, others/RPEBERT.py) has sign(x)·⌈|x|/l⌉, so that
    level 0 is the token itself alone, and vectors of each head's own: hence ``rounding`` is "away" unless it
    is "floor", and the paper's tables are run with ``per_head``. Nothing is added to the values, since Eq. 5
    has the keys alone. Cost as Shaw's.
    """

    def __init__(self, *, k: int = 16, rounding: str = "away", per_head: bool = False, **shared):
        check_choice("rounding", rounding, ("away", "floor"))
        super().__init__(k=k, per_head=per_head, **shared)
        self.width = self.layer
        self.rounding = rounding
