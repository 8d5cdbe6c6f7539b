"""T5's bucketed relative bias."""

import math

import torch
from torch import Tensor, nn

from fairseq_lrpe.encodings.base import Encoding, register_encoding
from fairseq_lrpe.ops.relative import distance_table, expand_distances


def relative_bucket(distance: Tensor, causal: bool, buckets: int, max_distance: int) -> Tensor:
    """Returns T5's bucket of the distances i − j (Raffel et al. 2020; table in Su's survey of 2021).

    Half of the buckets (all if ``causal``) are for keys at or before the query: the first half of them have
    one bucket per distance, the others grow logarithmically up to ``max_distance``. The other half is for
    later keys, in the same way.
    """
    side = buckets if causal else buckets // 2
    exact = side // 2
    distance_abs = distance.clamp(min=0) if causal else distance.abs()
    # Integer lower bounds of the logarithmic buckets: comparisons with them are immune to rounded logarithms.
    growth = (max_distance / exact) ** (1 / (side - exact))
    starts = [math.ceil(exact * growth**m - 1e-9) for m in range(1, side - exact)]
    logarithmic = exact + torch.bucketize(distance_abs, torch.tensor(starts), right=True)
    bucket = torch.where(distance_abs < exact, distance_abs, logarithmic)
    return bucket if causal else bucket + side * (distance < 0)


@register_encoding(
    "t5",
    buckets="number of T5's distance buckets",
    max_distance="distance from which on T5's last bucket is used",
)
class T5(Encoding):
    """Adds β_{bucket(i−j), h} to the scaled scores (Raffel et al. 2020; survey Eq. 10).

    T5 itself does not scale its scores; here they are scaled as in every other encoding.
    O(L²) additions per head; only O(L) look-ups.
    """

    decomposable = False
    uses_distance_table = True

    def __init__(self, *, buckets: int = 32, max_distance: int = 128, **shared):
        super().__init__(**shared)
        if buckets < 4 or buckets % 4 or max_distance <= buckets // 2:
            raise ValueError(
                f"t5 needs a multiple of 4 buckets and a max distance above half of them, "
                f"not {buckets} and {max_distance}"
            )
        self.buckets, self.max_distance = buckets, max_distance
        self.relative_attention_bias = nn.Embedding(buckets, self.num_heads)
        nn.init.normal_(self.relative_attention_bias.weight, std=0.02)

    def bias(self, q: Tensor, k: Tensor, q_offset: int = 0) -> Tensor:
        queries, keys = q.size(-2), k.size(-2)
        options = (self.causal, self.buckets, self.max_distance)
        distances = queries, keys, q_offset, self.causal, q.device
        bucket = distance_table(relative_bucket, options, *distances, clamp=self.clamp_length)
        return expand_distances(self.relative_attention_bias(bucket).T, queries, keys, q_offset).unsqueeze(0)
