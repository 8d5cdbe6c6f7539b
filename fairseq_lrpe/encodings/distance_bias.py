"""Base class of biases that are a function of the distance."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.ops.precision import sum_dtype
from fairseq_lrpe.ops.relative import distance_table, expand_distances


class DistanceBias(Encoding):
    """Base class of encodings that add f_h(|i−j|) to the scaled scores; subclasses implement :meth:`values`.

    f is computed in float32 or float64. Its values are clamped to half of the lowest finite number of the
    dtype of q, so that scores stay finite in float16. The bias costs O(L²) additions per head, but f is
    computed for O(L) distances only.
    """

    decomposable = False
    uses_distance_table = True

    def values(self, distance: Tensor) -> Tensor:
        """Returns f_h of each distance, (H, W), or (1, W) if f is the same for all heads.

        Args:
            distance: absolute distances (W,), in float32 or float64, which is also the dtype of the result.
        """
        raise NotImplementedError

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        queries = q.size(-2)
        keys = k.size(-2)
        dtype = sum_dtype(q.dtype)
        arguments = queries, keys, context.q_offset, self.causal, q.device, dtype
        distance = distance_table(torch.abs, (), *arguments, clamp=self.clamp_length)
        bias = self.values(distance).clamp(min=torch.finfo(q.dtype).min / 2).to(q.dtype)
        return expand_distances(bias, queries, keys, context.q_offset).unsqueeze(0)
