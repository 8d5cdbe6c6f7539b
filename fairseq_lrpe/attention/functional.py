"""Encodings at explicit positions, for models that have their own attention."""

import torch
from torch import Tensor

from fairseq_lrpe.encodings import START, Context, Encoding, InputsMixin, prepare_scores
from fairseq_lrpe.encodings.base import overrides
from fairseq_lrpe.encodings.scores import block_scores, modifies_scores, query_bias
from fairseq_lrpe.encodings.transformations import decode_output, encode_values, needs_weights
from fairseq_lrpe.ops.position_index import PositionIndex, integer_positions


def apply_encoding(
    encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor, key_positions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns q and k encoded at the given positions.

    The scores of softmax attention are ``encoding.scale`` · q·kᵀ. If the encoding ``modifies_scores``, add
    :func:`attention_bias`, which raises a ValueError if the scores are not those of a bias (such as PER and
    CoPE). In linear attention, q and k are encoded after the feature map, and ``log_decay`` is an argument of
    :func:`fairseq_lrpe.ops.linear_attention`.

    The function takes about as long as ``encoding(q, k)``, however large the positions are. Exceptions are
    ConvSPE, which draws noise for each block that contains a position, and LieRE, which computes the
    exponential of a matrix for each position.

    Args:
        encoding: the encoding. Its parameters are trained if it is a submodule of the model.
        q: queries (B, H, Lq, d).
        k: keys (B, H, Lk, d), with as many heads as q: repeat those of grouped-query attention.
        positions: positions of the queries, integers (Lq,), or (B, Lq) if they differ between the rows of a
            batch. An encoding with two ``axes`` takes the coordinates (Lq, 2) or (B, Lq, 2).
        key_positions: positions of the keys, by default those of the queries.

    Returns:
        The encoded q (B, H, Lq, d') and k (B, H, Lk, d'), where d' may be larger than d.

    Raises:
        ValueError: for invalid positions, and for encodings that change only the scores, change values or
            outputs, or depend on the layer's inputs.
    """
    _check(encoding, q, k)
    adds_bias_only = not overrides(encoding, "forward") or query_bias(encoding) is not None
    if adds_bias_only and modifies_scores(encoding):
        _check_is_bias(encoding, q, k)
        raise ValueError(
            f"{encoding.name} changes the scores, not q and k: add attention_bias(...) to the scores, or "
            f"{_modules(encoding)}"
        )
    at_q, at_k, last = _check_positions(encoding, q, k, positions, key_positions)
    index = key_index = PositionIndex(at_q.flatten(0, 1), at_k.flatten(0, 1), last)
    if key_positions is not None:
        key_index = index._replace(query_positions=index.key_positions)
    if len(at_q) == 1:
        return encoding(q, k, Context(index, key_index))
    # Tokens are encoded independently of each other, so that the rows of the batch can be encoded as one.
    q, k = (x.transpose(0, 1).flatten(1, 2)[None] for x in (q, k))
    q, k = encoding(q, k, Context(index, key_index))
    return tuple(x[0].unflatten(1, (len(at_q), -1)).transpose(0, 1) for x in (q, k))


def attention_bias(
    encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor, key_positions: Tensor | None = None
) -> Tensor:
    """Returns the term that the encoding adds to the scores, broadcastable to (B, H, Lq, Lk).

    The scores of softmax attention are ``encoding.scale`` · q·kᵀ + bias. In causal attention, entries of keys
    after their query are arbitrary, but finite, and have to be masked.

    Args:
        encoding: the encoding.
        q: queries (B, H, Lq, d), as returned by :func:`apply_encoding` if the encoding supports it.
        k: keys (B, H, Lk, d), likewise.
        positions: positions of the queries, as in :func:`apply_encoding`.
        key_positions: positions of the keys, likewise.

    Raises:
        ValueError: if q or k is not (B, H, L, width), for invalid positions, and for encodings that do not
            change the scores, whose scores are not q·kᵀ plus a bias (such as CoPE and DAPE), that change
            values or outputs, or that depend on the layer's inputs.
    """
    _check(encoding, q, k)
    if not modifies_scores(encoding):
        raise ValueError(f"{encoding.name} does not add a bias to the scores: use apply_encoding(...)")
    _check_is_bias(encoding, q, k)
    at_q, at_k, last = _check_positions(encoding, q, k, positions, key_positions)
    if not q.size(2):
        return q.new_zeros(1, 1, 0, k.size(2))
    if not encoding.uses_absolute_positions and at_k.numel():
        # Scores depend on distances only, but tables of distances grow with the largest position.
        first = min(int(at_q.min()), int(at_k.min()))
        at_q = at_q - first
        at_k = at_k - first
        last = last - first
    indices = [PositionIndex(*row, last) for row in zip(at_q, at_k, strict=True)]
    u = query_bias(encoding)
    content_bias = None if u is None else encoding.scale * (k @ u.unsqueeze(-1)).mT  # (B, H, 1, Lk)
    q = q if u is None else q + u[:, None]
    parts = zip(q.split(len(q) // len(indices)), k.split(len(q) // len(indices)), indices, strict=True)
    biases = [_bias(encoding, *part) for part in parts]
    bias = torch.cat([bias[(None,) * (4 - bias.dim())] for bias in biases])
    return bias if content_bias is None else bias + content_bias


def _bias(encoding, q, k, index):
    return encoding.bias(q, k, prepare_scores(encoding, q, k, Context(index, index)))


def _modules(encoding):
    return f"use {'LinearAttention or ' * encoding.decomposable}SoftmaxAttention"


def _check_is_bias(encoding, q, k):
    pair = q[:, :, :1], k[:, :, :1]
    if block_scores(encoding, *pair, prepare_scores(encoding, *pair, START)) is not None:
        raise ValueError(f"the scores of {encoding.name} are not q·k plus a bias: {_modules(encoding)}")


def _check(encoding, q, k):
    for name, x in {"q": q, "k": k}.items():
        if x.dim() != 4 or x.size(0) != q.size(0) or x.size(1) != encoding.num_heads:
            raise ValueError(
                f"{name} must have shape (batch, {encoding.num_heads} heads, length, width), not "
                f"{tuple(x.shape)}"
            )
    changes_values = encode_values(encoding, k) is not k or decode_output(encoding, q) is not q
    if changes_values or needs_weights(encoding):
        raise ValueError(
            f"{encoding.name} also changes the values or outputs of attention: {_modules(encoding)}"
        )
    if isinstance(encoding, InputsMixin):
        raise ValueError(f"{encoding.name} depends on the inputs of the layer: {_modules(encoding)}")


def _check_positions(encoding, q, k, positions, key_positions):
    """Returns the positions of q and k, (1 or B, L) or (1 or B, L, axes), and the largest one."""
    at_q = _with_batch(encoding, q, positions, "positions")
    at_k = at_q
    if key_positions is not None or q.size(2) != k.size(2):
        key_positions = positions if key_positions is None else key_positions
        at_k = _with_batch(encoding, k, key_positions, "key_positions")
    rows = max(len(at_q), len(at_k))
    at_q, at_k = (x.expand(rows, *x.shape[1:]) for x in (at_q, at_k))
    # The position 0 is added for empty inputs.
    smallest, last = torch.cat([at_q.flatten(), at_k.flatten(), at_q.new_zeros(1)]).aminmax()
    if smallest < 0:
        raise ValueError(f"positions must not be negative, but the smallest one is {smallest}")
    return at_q, at_k, int(last)


def _with_batch(encoding, x, positions, name):
    batch, _, length, _ = x.shape
    axes = (encoding.axes,) * (encoding.axes > 1)
    shapes = (length, *axes), (batch, length, *axes), (1, length, *axes)
    if positions.shape not in shapes or positions.is_floating_point():
        raise ValueError(
            f"{name} must be integers of shape {shapes[0]} or {shapes[1]} for {encoding.name} with "
            f"{encoding.axes} axes, not {positions.dtype} of shape {tuple(positions.shape)}"
        )
    positions = integer_positions(positions)
    if not batch or positions.shape == shapes[0]:
        positions = (positions if batch else positions.new_zeros(shapes[0]))[None]
    return positions.to(x.device)
