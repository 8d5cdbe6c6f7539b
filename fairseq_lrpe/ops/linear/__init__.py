"""Linear attention: the public function, its definition, and its forms for CPUs and GPUs."""

from fairseq_lrpe.ops.linear.functional import linear_attention
from fairseq_lrpe.ops.linear.state import LinearState

__all__ = ["LinearState", "linear_attention"]
