"""Linear attention: its entrance, its state, and a file for each way to compute it.

``fairseq_lrpe.ops.linear_attention`` is the function; what else is in here is imported ``from`` its file.
"""

from fairseq_lrpe.ops.linear_attention.entrance import linear_attention
from fairseq_lrpe.ops.linear_attention.state import LinearState

__all__ = ["LinearState", "linear_attention"]
