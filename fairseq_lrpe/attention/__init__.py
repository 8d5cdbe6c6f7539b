"""Self-attention modules for fairseq's layers: project, encode, attend, project back."""

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.config import PositionConfig, encoding_from_config

__all__ = ["LinearAttention", "SelfAttention", "SoftmaxAttention", "build_attention"]


def build_attention(cfg: PositionConfig, *, dropout: float, **arguments) -> SelfAttention:
    """Builds the attention module that the flags ask for.

    The arguments are :func:`fairseq_lrpe.config.encoding_from_config`'s. ValueError for flags that cannot be.
    """
    encoding = encoding_from_config(cfg, **arguments)
    if cfg.attention == "linear":
        return LinearAttention(encoding, cfg.linear_norm, cfg.feature_map, cfg.linear_backend)
    return SoftmaxAttention(encoding, dropout)
