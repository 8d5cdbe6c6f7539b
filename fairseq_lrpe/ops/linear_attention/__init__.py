"""Linear attention: the public function, its state, and one file per backend.

``fairseq_lrpe.ops.linear_attention`` is the function; import everything else from the files in this package.
"""

from fairseq_lrpe.ops.linear_attention.dispatch import linear_attention
from fairseq_lrpe.ops.linear_attention.state import LinearState

__all__ = ["LinearState", "linear_attention"]
