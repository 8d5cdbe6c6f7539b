"""Validation of the arguments of attention modules."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings import Encoding


def check_mask(mask: Tensor, batch: int, lengths: tuple[int, ...]) -> None:
    """Raises a ValueError if a padding mask is not boolean, or not (batch, one of ``lengths``)."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"key_padding_mask must be torch.bool (True at padding), not {mask.dtype}: use mask.bool()"
        )
    if mask.dim() != 2 or mask.size(0) != batch or all(mask.size(1) != n for n in lengths):
        shapes = " or ".join(dict.fromkeys(str((batch, length)) for length in lengths))
        raise ValueError(f"key_padding_mask must have shape {shapes}, not {tuple(mask.shape)}")


def check_encoding(
    encoding: Encoding, num_heads: int, head_dim: int, causal: bool | None, options: dict
) -> None:
    """Raises a ValueError if the arguments of a module do not match the given encoding."""
    if options:
        raise ValueError(
            f"{', '.join(options)} cannot be passed with an existing encoding: omit them, or pass the name "
            "of an encoding"
        )
    if (encoding.num_heads, encoding.head_dim) != (num_heads, head_dim):
        raise ValueError(
            f"the encoding has {encoding.num_heads} heads of dimension {encoding.head_dim}, but the module "
            f"{num_heads} of dimension {head_dim}: pass num_heads={encoding.num_heads} and "
            f"embed_dim={encoding.num_heads * encoding.head_dim}"
        )
    if causal not in (None, encoding.causal):
        raise ValueError(f"the encoding has causal={encoding.causal}: omit causal={causal}")
