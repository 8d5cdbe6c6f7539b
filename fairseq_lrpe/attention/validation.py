"""Validation of the arguments of attention modules."""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.encodings import Encoding
from fairseq_lrpe.ops.position_index import PositionIndex


def check_inputs(x: Tensor, keys: Tensor | None, embed_dim: int) -> None:
    """Raises a ValueError if inputs do not have three dimensions or the width, or keys another shape."""
    if x.dim() != 3 or x.size(2) != embed_dim:
        raise ValueError(
            f"inputs must have three dimensions, of which the last is embed_dim {embed_dim}, not "
            f"shape {tuple(x.shape)}"
        )
    if keys is not None and keys.shape != x.shape:
        raise ValueError(f"keys must have the shape {tuple(x.shape)} of x, not {tuple(keys.shape)}")


def check_documents(
    encoding: Encoding, memory: Any, state: Any, return_state: bool, position_index: PositionIndex | None
) -> None:
    """Raises a ValueError for arguments and scaled angles that packed documents do not support."""
    if memory is not None or state is not None or return_state or position_index is not None:
        raise ValueError(
            "document_ids cannot be combined with memory, state, return_state or position_index: call the "
            "module for each document"
        )
    for part in encoding.modules():  # an encoding can contain another one
        scaling = getattr(part, "rope_scaling", None)
        if scaling is not None and scaling.type == "dynamic":
            raise ValueError(
                "dynamic scaling depends on the length of a call, which is not that of each document: call "
                "the module for each document, or use ntk, such as ntk:4"
            )


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
