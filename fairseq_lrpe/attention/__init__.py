"""Self-attention with a positional encoding, as modules that depend only on torch.

For example, for inputs x (batch, length, 512):

    attention = LinearAttention(512, 8, "lrpe", linear_norm="layernorm", causal=True)
    y = attention(x)
    y, state = attention(x[:, :1], return_state=True)  # decoding, one position at a time
    y, state = attention(x[:, 1:2], state=state, return_state=True)

``DeltaAttention`` is linear attention with a delta rule. ``MultiheadLinearAttention``,
``MultiheadDeltaAttention`` and ``MultiheadSoftmaxAttention`` are the same modules with the interface of
``torch.nn.MultiheadAttention``, and ``fairseq_adapter`` contains them with the interface of fairseq's
attention. ``apply_encoding`` and ``attention_bias`` are for models that have their own attention, and
``attention_weights`` for plots.
"""

import torch
from torch.torch_version import TorchVersion

from fairseq_lrpe.attention.base import AttentionState, SelfAttention
from fairseq_lrpe.attention.delta import DeltaAttention
from fairseq_lrpe.attention.functional import apply_encoding, attention_bias
from fairseq_lrpe.attention.key_state import KeyState
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.attention.torch_adapter import (
    MultiheadDeltaAttention,
    MultiheadLinearAttention,
    MultiheadSoftmaxAttention,
)
from fairseq_lrpe.attention.weights import attention_weights
from fairseq_lrpe.ops import LinearState

# torch.load, which by default reads weights only, then reads saved states, too.
torch.serialization.add_safe_globals([AttentionState, KeyState, LinearState])
if TorchVersion(torch.__version__) >= "2.6":  # states that version 1.0 saved
    torch.serialization.add_safe_globals(
        [
            (KeyState, "fairseq_lrpe.attention.linear.KeyState"),
            (LinearState, "fairseq_lrpe.ops.linear_attention.state.LinearState"),
        ]
    )

__all__ = [
    "AttentionState",
    "DeltaAttention",
    "LinearAttention",
    "MultiheadDeltaAttention",
    "MultiheadLinearAttention",
    "MultiheadSoftmaxAttention",
    "SelfAttention",
    "SoftmaxAttention",
    "apply_encoding",
    "attention_bias",
    "attention_weights",
]
