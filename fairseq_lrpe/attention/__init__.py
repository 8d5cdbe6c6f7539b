"""Self-attention modules for fairseq's layers: project, encode, attend, project back."""

import torch

from fairseq_lrpe.attention.base import SelfAttention
from fairseq_lrpe.attention.linear import LinearAttention
from fairseq_lrpe.attention.softmax import SoftmaxAttention
from fairseq_lrpe.config import PositionConfig, encoding_from_config
from fairseq_lrpe.encodings import Encoding

# Strong decays leave weights of nearly 0, with which attention on a CPU takes twice as long as with 0.
torch.set_flush_denormal(True)

__all__ = ["LinearAttention", "SelfAttention", "SoftmaxAttention", "build_attention"]


def build_attention(
    cfg: PositionConfig, *, dropout: float, shared: list[Encoding] | None = None, **arguments
) -> SelfAttention:
    """Builds the attention module that the flags ask for.

    ``shared`` is one list for all layers of an encoder or decoder: an encoding that is ``shared_by_layers``
    is put there by the first and taken from there by the others. The other arguments are
    :func:`fairseq_lrpe.config.encoding_from_config`'s. ValueError for flags that cannot be.
    """
    encoding = shared[0] if shared else encoding_from_config(cfg, **arguments)
    if shared == [] and encoding.shared_by_layers:
        shared.append(encoding)
    if cfg.attention == "linear":
        return LinearAttention(encoding, cfg.linear_norm, cfg.feature_map, cfg.linear_backend)
    return SoftmaxAttention(encoding, dropout)
