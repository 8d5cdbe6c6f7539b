"""T5's bucketed relative bias."""

import math

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.encodings.context import Context
from fairseq_lrpe.ops.relative import distance_table, expand_distances


def relative_bucket(distance: Tensor, causal: bool, buckets: int, max_distance: int) -> Tensor:
    """Returns T5's bucket index of each distance i − j (Raffel et al. 2020; table in Su 2021).

    The first half of the buckets is for keys at or before the query, and the second half for later keys. If
    ``causal``, all buckets are for keys at or before the query. In each direction, the first half of its
    buckets cover one distance each, and the others are spaced logarithmically up to ``max_distance``.
    """
    side = buckets if causal else buckets // 2
    exact = side // 2
    distance_abs = distance.clamp(min=0) if causal else distance.abs()
    # Comparing distances with the integer lower bounds of the logarithmic buckets avoids rounding errors.
    growth = (max_distance / exact) ** (1 / (side - exact))
    bounds = [math.ceil(exact * growth**m - 1e-9) for m in range(1, side - exact)]
    starts = torch.tensor(bounds, device=distance.device)
    logarithmic = exact + torch.bucketize(distance_abs, starts, right=True)
    bucket = torch.where(distance_abs < exact, distance_abs, logarithmic)
    return bucket if causal else bucket + side * (distance < 0)


@register_encoding(
    "t5",
    buckets="number of T5's distance buckets",
    max_distance="distance from which on all distances are in T5's last bucket",
)
class T5(Encoding):
    """Adds a learned β_{bucket(i−j), h} to the scaled scores of head h (Raffel et al. 2020; Su 2021, Eq. 10).

    T5 itself does not scale its scores; here they are scaled as in every other encoding.
    The bias costs O(L²) additions per head, but only O(L) look-ups.
    """

    decomposable = False
    uses_distance_table = True

    def __init__(self, *, buckets: int = 32, max_distance: int = 128, **shared):
        super().__init__(**shared)
        if buckets < 4 or buckets % 4 or max_distance <= buckets // 2:
            raise ValueError(
                "t5 needs a multiple of 4 buckets, and a max_distance above half their number, not buckets "
                f"{buckets} and max_distance {max_distance}"
            )
        self.buckets = buckets
        self.max_distance = max_distance
        self.relative_attention_bias = nn.Embedding(buckets, self.num_heads)
        nn.init.normal_(self.relative_attention_bias.weight, std=0.02)

    def bias(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        queries = q.size(-2)
        keys = k.size(-2)
        options = (self.causal, self.buckets, self.max_distance)
        distances = queries, keys, context.q_offset, self.causal, q.device
        bucket = distance_table(relative_bucket, options, *distances, clamp=self.clamp_length)
        bias = self.relative_attention_bias(bucket).T
        return expand_distances(bias, queries, keys, context.q_offset).unsqueeze(0)
