"""Low-level fine-grained, high-level coarse-grained embedding (LFHC)."""

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.shaw import Shaw
from fairseq_lrpe.utils.suggest import check_choice


@register_encoding(
    "lfhc",
    k="maximum k of LFHC's distances after division by the layer number; there are 2k + 1 vectors",
    rounding="how LFHC rounds a distance divided by the layer number: away (from zero) or floor (as in its "
    "paper's formula)",
    per_head="use separate LFHC vectors for each head",
)
class LFHC(Shaw):
    """Adds q_i·w_{clip^l(i−j, k)} / √d to the scaled scores in layer l (Qu et al. 2021, Eq. 9).

    clip^l(x, k) is x/l, rounded, and clipped to −k..k. Each vector covers l distances, so that higher layers
    distinguish larger distances with the same number of parameters. Layer 1 is Shaw's encoding.

    Eq. 9 has ⌊x/l⌋ in both of its middle cases, x ≥ 0 and x < 0, which would make them one case. The author's
    public code (menghuanlater/mt-llm-code, others/RPEBERT.py) uses sign(x)·⌈|x|/l⌉, so that only distance 0
    becomes 0, and separate vectors for each head. Therefore ``rounding`` defaults to "away", and our
    experiments for the paper's tables use ``per_head``. Values are not encoded, because Eq. 5 includes only
    the keys. The cost is that of Shaw's encoding.
    """

    def __init__(self, *, k: int = 16, rounding: str = "away", per_head: bool = False, **shared):
        check_choice("rounding", rounding, ("away", "floor"))
        super().__init__(k=k, per_head=per_head, **shared)
        self.width = self.layer
        self.rounding = rounding
