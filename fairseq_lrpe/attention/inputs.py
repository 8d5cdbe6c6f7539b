"""Inputs of a layer that its attention or its encoding needs, besides queries, keys and values."""

import torch
from torch import Tensor

from fairseq_lrpe.attention.state import STATE_REMEDY
from fairseq_lrpe.encodings import Encoding, InputsMixin


def inputs_with_context(x: Tensor, padding: Tensor | None, earlier: Tensor | None, count: int) -> Tensor:
    """Returns the inputs of all keys after ``count`` earlier ones, (B, count + L, E), which are 0 at padding.

    Args:
        x: inputs (B, L, E).
        padding: (B, L), True at padding, or None.
        earlier: the inputs (B, count, E) before x, or None at the start, before which inputs are 0.
        count: number of earlier inputs.

    Raises:
        ValueError: if the earlier inputs have another batch size.
    """
    if padding is not None:
        x = x.masked_fill(padding[..., None], 0.0)
    earlier = x.new_zeros(x.size(0), count, x.size(2)) if earlier is None else earlier
    if earlier.size(0) != x.size(0):
        raise ValueError(f"the state has a batch of {earlier.size(0)}, not {x.size(0)}: {STATE_REMEDY}")
    return torch.cat([earlier, x], dim=1)


def input_features(
    encoding: Encoding, inputs: Tensor | None, padding: Tensor | None, count: int | None
) -> Tensor | None:
    """Returns the encoding's features (B, H, L, F) of the last inputs, or None if it has none.

    Args:
        encoding: the encoding.
        inputs: the result of :func:`inputs_with_context`, or None if the encoding has no features.
        padding: (B, L), True at padding, where features are 0, or None.
        count: number of earlier inputs, at least the encoding's ``left_context``.
    """
    if not isinstance(encoding, InputsMixin):
        return None
    assert inputs is not None and count is not None  # its layer has a ``left_context``
    features = encoding.input_features(inputs[:, count - encoding.left_context :])
    return features if padding is None else features.masked_fill(padding[:, None, :, None], 0.0)
