"""Self-attention modules for fairseq layers: project, encode positions, attend, project back."""

import torch

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.encodings import Encoding

# Strong decays produce denormal weights, which make attention on a CPU twice as slow as zeros do.
torch.set_flush_denormal(True)

__all__ = ["LinearAttention", "SelfAttention", "SoftmaxAttention", "build_attention"]


def build_attention(
    cfg: PositionConfig, *, dropout: float, shared: list[Encoding] | None = None, **arguments
) -> SelfAttention:
    """Builds the attention module that the flags select.

    Args:
        cfg: the flags.
        dropout: dropout probability of the attention weights (softmax attention only).
        shared: one list for all layers of an encoder or decoder. The first layer stores an encoding that is
            ``shared_across_layers`` in it, and the other layers reuse it.
        **arguments: passed on to :func:`fairseq_lrpe.config.encoding_from_config`.

    Raises:
        ValueError: if the flags are invalid or cannot be combined.
    """
    encoding = shared[0] if shared else encoding_from_config(cfg, **arguments)
    if shared == [] and encoding.shared_across_layers:
        shared.append(encoding)
    if cfg.attention == "linear":
        return LinearAttention(encoding, cfg.linear_norm, cfg.feature_map, cfg.linear_backend)
    return SoftmaxAttention(encoding, dropout)
