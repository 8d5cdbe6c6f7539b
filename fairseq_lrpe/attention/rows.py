"""Rows of a batch in the states of incremental decoding, which beam search reorders."""

from typing import overload

import torch
from torch import Tensor


@overload
def select_rows(x: Tensor, order: Tensor | None) -> Tensor: ...


@overload
def select_rows(x: None, order: Tensor | None) -> None: ...


def select_rows(x: Tensor | None, order: Tensor | None) -> Tensor | None:
    """Returns the rows ``order`` of x, or x if an argument is None or x has a single row."""
    if x is None or order is None or len(x) == len(order) == 1:
        return x
    return x.index_select(0, order)


def reordered_rows(x: Tensor | None, order: Tensor) -> Tensor | None:
    """Returns the rows ``order`` of x, which can be on another device than ``order``."""
    return None if x is None else select_rows(x, order.to(x.device))


def append_rows(past: Tensor, order: Tensor | None, new: Tensor) -> Tensor:
    """Returns the rows ``order`` of ``past`` (B, H, n, d), followed by ``new``, (B', H, n + L, d)."""
    if order is None or past.requires_grad or new.requires_grad:
        return torch.cat([select_rows(past, order), new], dim=2)
    length = past.size(2)
    out = new.new_empty(*new.shape[:2], length + new.size(2), *new.shape[3:])
    torch.index_select(past, 0, order, out=out[:, :, :length])
    out[:, :, length:] = new
    return out
