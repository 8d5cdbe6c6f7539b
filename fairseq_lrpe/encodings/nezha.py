"""NEZHA's functional relative encoding."""

from fairseq_lrpe.encodings.base import register_encoding
from fairseq_lrpe.encodings.shaw import Shaw
from fairseq_lrpe.encodings.xl import sinusoids
from fairseq_lrpe.ops.relative import distance_table


@register_encoding("nezha", k="clipping distance of NEZHA's encoding")
class NEZHA(Shaw):
    """Encoding ``shaw`` of keys and values with fixed sinusoids instead of learned vectors (Wei et al. 2019).

    With x = clip(j−i, k), the vector of keys and values has the features sin(x / 10000^(2t/d)) and
    cos(x / 10000^(2t/d)), interleaved, t = 0, 1, .., where d is the head dimension. The default k is that of
    the public models (huawei-noah/Pretrained-Language-Model, NEZHA-PyTorch, ``max_relative_position``).

    The public code (``modeling_nezha.py``) uses x + k instead of the paper's x. This addition rotates each
    pair of features of all vectors by the same angle, which is equivalent to rotating the learned projections
    of queries, keys, values and outputs. The cost is that of ``shaw``; there are no parameters.

    Raises:
        ValueError: for k below 1.
    """

    def __init__(self, *, k: int = 64, **shared):
        super().__init__(k=k, values=True, **shared)

    def _create_vectors(self):
        """Creates no parameters, because the vectors are fixed."""

    def _vectors(self, name, like):
        # The table of k + 1 queries and keys has the distances k, .., -k, and an unused one. Shaw's index of
        # i−j is n = i−j + k, so row n of the table has the distance k − n = j−i.
        size = self.k + 1
        table = distance_table(sinusoids, (self.head_dim,), size, size, 0, False, like.device, like.dtype)
        return table[:-1]
