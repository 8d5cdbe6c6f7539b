"""Linear attention: the public functions, their definitions, and their forms for CPUs and GPUs."""

from fairseq_lrpe.ops.linear.delta import delta_rule
from fairseq_lrpe.ops.linear.functional import linear_attention
from fairseq_lrpe.ops.linear.state import LinearState

__all__ = ["LinearState", "delta_rule", "linear_attention"]
