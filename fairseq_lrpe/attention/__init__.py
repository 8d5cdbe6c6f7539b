"""Self-attention modules for fairseq's layers: project, encode, attend, project back."""

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.build import build_attention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention

__all__ = ["LinearAttention", "SelfAttention", "SoftmaxAttention", "build_attention"]
