"""Tensor functions without parameters, which depend only on torch."""

from fairseq_lrpe.ops.feature_maps import FEATURE_MAPS
from fairseq_lrpe.ops.linear import LinearState, delta_rule, linear_attention

__all__ = ["FEATURE_MAPS", "LinearState", "delta_rule", "linear_attention"]
