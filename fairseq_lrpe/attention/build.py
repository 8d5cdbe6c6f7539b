"""From flags to an attention module."""

from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.config import encoding_from_config


def build_attention(cfg, *, embed_dim, num_heads, causal, layer, max_positions, dropout):
    """The attention module that the flags of ``cfg`` (a PositionConfig) ask for."""
    encoding = encoding_from_config(
        cfg,
        embed_dim=embed_dim,
        num_heads=num_heads,
        causal=causal,
        layer=layer,
        max_positions=max_positions,
    )
    if cfg.attention == "linear":
        return LinearAttention(encoding, cfg.linear_norm, cfg.feature_map)
    return SoftmaxAttention(encoding, dropout)
