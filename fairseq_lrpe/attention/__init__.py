"""Self-attention with a positional encoding, as plain modules that need only torch.

``fairseq_adapter`` has the same modules with the interface of fairseq's attention.
"""

from fairseq_lrpe.attention.base import AttentionState, SelfAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention

__all__ = ["AttentionState", "LinearAttention", "SelfAttention", "SoftmaxAttention"]
