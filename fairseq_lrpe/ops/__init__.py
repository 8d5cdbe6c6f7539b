"""Tensor functions without parameters; torch only."""

from fairseq_lrpe.ops.feature_maps import FEATURE_MAPS
from fairseq_lrpe.ops.linear_attention import linear_attention

__all__ = ["FEATURE_MAPS", "linear_attention"]
