"""Runs every encoding and every kind of token positions for a few tokens, which needs torch only."""

import torch

from fairseq_lrpe.attention import (
    LinearAttention,
    MultiheadLinearAttention,
    SoftmaxAttention,
    apply_encoding,
    attention_bias,
)
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.positions import POSITIONS, build_position

x = torch.randn(3, 5, 16, requires_grad=True)
positions = torch.arange(5)
q = torch.randn(3, 2, 5, 8)
for name, cls in ENCODINGS.items():
    for attention in [LinearAttention, SoftmaxAttention] if cls.decomposable else [SoftmaxAttention]:
        module = attention(16, 2, name, causal=True, layers=2).eval()
        out, state = module(x, return_state=True)
        out.sum().backward()
        module(x[:, :1], state=state)
apply_encoding(LinearAttention(16, 2, "rope", causal=True).encoding, q, q, positions)
attention_bias(SoftmaxAttention(16, 2, "t5", causal=True).encoding, q, q, positions)
layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
layer.self_attn = MultiheadLinearAttention(16, 2, "lrpe", causal=False)
layer(x)
for name in POSITIONS:
    position = build_position(name, embed_dim=16, vocab_size=9)
    position(torch.randn(3, 5, position.width), positions.expand(3, 5), torch.full((3, 5), 4))
print(f"{len(ENCODINGS)} encodings and {len(POSITIONS)} kinds of positions with torch {torch.__version__}")
