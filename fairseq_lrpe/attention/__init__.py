"""Self-attention with a positional encoding, as modules that depend only on torch.

For example, for inputs x (batch, length, 512):

    encoding = build_encoding("lrpe", num_heads=8, head_dim=64, causal=True)
    attention = LinearAttention(encoding, linear_norm="layernorm")
    y = attention(x)
    y, state = attention(x[:, :1], return_state=True)  # decoding, one position at a time
    y, state = attention(x[:, 1:2], state=state, return_state=True)

``fairseq_adapter`` contains the same modules with the interface of fairseq's attention.
"""

from fairseq_lrpe.attention.base import AttentionState, SelfAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention

__all__ = ["AttentionState", "LinearAttention", "SelfAttention", "SoftmaxAttention"]
