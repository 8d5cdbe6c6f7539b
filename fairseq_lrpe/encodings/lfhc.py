"""Low-level fine-grained, high-level coarse-grained embedding."""

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.shaw import Shaw


@register_encoding("lfhc", k="number of LFHC's vectors on either side")
class LFHC(Shaw):
    """Adds q_i·w_{clip^l(i−j, k)} / √d: Shaw's encoding with clip^l, Eq. 9 of Qu et al. 2021, in layer l.

    clip^l(x, k) is k for x > kl, ⌊x/l⌋ for −kl ≤ x ≤ kl and −k for x < −kl: a vector stands for
    l distances, so that higher layers see further with the same number of parameters. Layer 1 is Shaw's.

    Choices the paper leaves open: the floor holds for negative x as printed (x = −1 gets level −1 in every
    layer, and level 0 the distances 0..l−1); nothing is added to the values, since Eq. 5 has the keys alone.
    Cost as Shaw's.
    """

    def __init__(self, *, k: int = 16, **shared):
        super().__init__(k=k, **shared)
        self.width = self.layer
