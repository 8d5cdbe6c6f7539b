"""Contextual position encoding."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_lrpe.encodings.base import Encoding, register_encoding


@register_encoding("cope", positions="how many positions CoPE has vectors of, the least of which is 0")
class CoPE(Encoding):
    """Counts the keys from j up to the query i that a gate lets count (Golovneva et al. 2024).

    With s_ij = q_i·k_j / √d the gates are g_ij = σ(s_ij), the position p_ij = Σ_{t=j..i} g_it, at most
    positions − 1, and the score is s_ij + q_i·e[p_ij] / √d, where e[p] lies between e[⌊p⌋] and e[⌈p⌉] as p
    between the two. The authors' listing does not say where its logits are scaled: here every q·k is, and
    so what the gates see too. Padding, and keys after the query, count nothing. The vectors e are shared by
    the heads, and start at 0.

    q meets the e once, O(L·positions·d); all else is O(L²) sums and look-ups beside the O(L² d) of q·k.
    """

    decomposable = False
    bidirectional = False

    def __init__(self, *, positions: int = 64, **shared):
        super().__init__(**shared)
        if positions < 2:
            raise ValueError(f"cope tells apart at least 2 positions, not {positions}")
        self.embeddings = nn.Parameter(torch.zeros(positions, self.head_dim))

    def scores_in_parts(
        self,
        q: Tensor,
        k: Tensor,
        q_offset: int = 0,
        key_padding_mask: Tensor | None = None,
        steps: Tensor | None = None,
    ) -> Callable[..., Tensor]:
        slopes = F.pad(self.embeddings.diff(dim=0), (0, 0, 0, 1))  # 0 from the last position on
        pairs = torch.stack([self.embeddings, slopes], dim=1).flatten(0, 1)
        return functools.partial(self._scores, pairs, key_padding_mask)

    def _scores(self, pairs, padding, q, k, q_offset=0):
        q = self.scale * q
        hidden = None if padding is None else padding[:, None, None, : k.size(-2)]
        return _Counted.apply(q @ k.mT, (q @ pairs.mT).unflatten(-1, (-1, 2)), hidden, q_offset)


class _Counted(torch.autograd.Function):
    # Of ``pairs`` (.., positions, 2) of a query, q·e[n] and q·(e[n+1] − e[n]), each key takes one, as a
    # complex number: half of the time of looking up both. The gates and the positions alone are kept.
    @staticmethod
    def forward(ctx, content, pairs, hidden, q_offset):
        dtype = torch.promote_types(content.dtype, torch.float32)
        gates = content.to(dtype).sigmoid().tril_(q_offset)
        if hidden is not None:
            gates.masked_fill_(hidden, 0.0)
        positions = gates.flip(-1).cumsum_(-1).flip(-1).clamp_(max=pairs.size(-2) - 1)
        ctx.save_for_backward(gates, positions, pairs)
        below, slopes = _looked_up(pairs, positions)
        return (content + below).addcmul_(positions.frac(), slopes).to(content.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        gates, positions, pairs = ctx.saved_tensors
        given, grad = grad, grad.to(gates.dtype)
        _, slopes = _looked_up(pairs, positions)
        both = torch.complex(grad, grad * positions.frac())
        grad_pairs = torch.zeros_like(pairs, dtype=grad.dtype)
        _complex(grad_pairs).scatter_add_(-1, positions.long(), both)
        # The last position's slope is 0, and so is what a key gets that lies further away.
        grad_gates = (grad * slopes).cumsum_(-1)
        grad_content = grad + torch.ops.aten.sigmoid_backward(grad_gates, gates)
        return grad_content.to(given.dtype), grad_pairs.to(pairs.dtype), None, None


def _looked_up(pairs, positions):
    """q·e[⌊p⌋], and how much more the next is."""
    found = _complex(pairs.to(positions.dtype)).gather(-1, positions.long())
    return found.real, found.imag


def _complex(x):
    return torch.view_as_complex(x)
