"""Keys and values that linear attention stores instead of their sums while there are few of them."""

from typing import NamedTuple

from torch import Tensor

from fairseq_lrpe.attention.rows import append_rows
from fairseq_lrpe.attention.state import STATE_REMEDY
from fairseq_lrpe.ops.decay import is_constant, is_of_features

_MAX_SIZE = 2.0
"""Maximum size of a :class:`KeyState`, relative to that of the sums.

A step of beam search reads and writes keys and values once, but sums twice.
"""


class KeyState(NamedTuple):
    """Keys and values of all previous positions, stored instead of their sums while :attr:`is_small` is true.

    A decoding step is then about as fast as in softmax attention. The sums have as many elements as the keys
    and values of d·dv / (d + dv) positions.

    Attributes:
        k: encoded keys (B, H, n, d), 0 at padding.
        v: encoded values (B, H, n, dv).
        log_decay: decay of each key (B, H, n, 1 or d), 0 at padding; None if there is none or it is constant.
    """

    k: Tensor
    v: Tensor
    log_decay: Tensor | None

    @property
    def is_small(self) -> bool:
        length, d = self.k.shape[2:]
        dv = self.v.size(3)
        return length * (d + dv) <= _MAX_SIZE * d * dv


def append_keys(
    state: KeyState | None,
    order: Tensor | None,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    key_padding_mask: Tensor | None,
) -> KeyState:
    """Returns the rows ``order`` of ``state``, to which new keys, values and decays are appended.

    Raises:
        ValueError: if the state has another batch size or number of heads.
    """
    if log_decay is not None and is_constant(log_decay):
        log_decay = None
    elif log_decay is not None and not is_of_features(log_decay):
        log_decay = log_decay[..., None]
    if key_padding_mask is not None:
        hidden = key_padding_mask[:, None, :, None]
        k = k.masked_fill(hidden, 0.0)
        log_decay = None if log_decay is None else log_decay.masked_fill(hidden, 0.0)
    if state is None:
        return KeyState(k, v, log_decay)
    batch = len(state.k if order is None else order)
    check_state_shape((batch, state.k.size(1)), k)
    if log_decay is not None:
        assert state.log_decay is not None  # all calls have a decay, or none
        log_decay = append_rows(state.log_decay, order, log_decay)
    return KeyState(append_rows(state.k, order, k), append_rows(state.v, order, v), log_decay)


def check_state_shape(shape: tuple[int, ...], x: Tensor) -> None:
    """Raises a ValueError if a state's batch size and number of heads are not those of x (B, H, ...)."""
    expected = tuple(x.shape[:2])
    if shape != expected:
        raise ValueError(f"the state has (batch, heads) {shape}, not {expected}: {STATE_REMEDY}")
