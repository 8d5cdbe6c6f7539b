"""Functions that apply the methods of mixins, for encodings with and without these mixins."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings.base import Encoding, overrides
from fairseq_lrpe.encodings.context import START, Context
from fairseq_lrpe.encodings.mixins import InputsMixin, ShiftMixin, ValuesMixin


def encode_values(encoding: Encoding, v: Tensor, context: Context = START) -> Tensor:
    """Returns the encoded values; see :meth:`ValuesMixin.encode_values`."""
    return encoding.encode_values(v, context) if isinstance(encoding, ValuesMixin) else v


def decode_output(
    encoding: Encoding, o: Tensor, context: Context = START, weights: Tensor | None = None
) -> Tensor:
    """Returns the transformed output of attention; see :meth:`ValuesMixin.decode_output`."""
    return encoding.decode_output(o, context, weights) if isinstance(encoding, ValuesMixin) else o


def needs_weights(encoding: Encoding) -> bool:
    """Returns whether :func:`decode_output` needs the attention weights."""
    return isinstance(encoding, ValuesMixin) and encoding.needs_weights


def shift_keys(encoding: Encoding, k: Tensor, shift: int) -> Tensor:
    """Returns the encoding of the same keys at positions smaller by ``shift``.

    Raises:
        ValueError: if the encoding changes keys and cannot shift them.
    """
    if isinstance(encoding, ShiftMixin):
        return encoding.shift_keys(k, shift)
    if overrides(encoding, "forward"):
        raise ValueError(f"{encoding.name} cannot shift the positions of encoded keys")
    return k


def shift_values(encoding: Encoding, v: Tensor, shift: int) -> Tensor:
    """Returns the encoding of the same values at positions smaller by ``shift``.

    Raises:
        ValueError: if the encoding changes values and cannot shift them.
    """
    return encoding.shift_values(v, shift) if isinstance(encoding, ValuesMixin) else v


def random_features(encoding: Encoding, rows: int, length: int) -> Tensor | None:
    """Returns the features (rows, H, length, F) of normal inputs, or None if the encoding has none."""
    if not isinstance(encoding, InputsMixin):
        return None
    width = encoding.num_heads * encoding.head_dim
    return encoding.input_features(torch.randn(rows, encoding.left_context + length, width))
