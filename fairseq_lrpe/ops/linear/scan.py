"""Linear recurrences of matrices."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import apply


def scan(transitions: Tensor, additions: Tensor, first: Tensor) -> Tensor:
    """Returns S_0, .., S_N with S_{n+1} = P_n S_n + H_n, (X, N + 1, d, dv).

    Args:
        transitions: P (X, N, d, d).
        additions: H (X, N, d, dv).
        first: S_0 (X, d, dv).
    """
    return apply(_Scan, transitions, additions, first)


class _Scan(torch.autograd.Function):
    """Autograd function of :func:`scan`, whose backward pass is a scan in the reverse order.

    Autograd would start three operations for each n instead of one.
    """

    @staticmethod
    def plain(transitions, additions, first):
        states = [first]
        for transition, addition in zip(transitions.unbind(1), additions.unbind(1), strict=True):
            states.append(torch.baddbmm(addition, transition, states[-1]))
        return torch.stack(states, dim=1)

    @staticmethod
    def forward(ctx, transitions, additions, first):
        states = _Scan.plain(transitions, additions, first)
        ctx.save_for_backward(transitions, states)
        return states

    @staticmethod
    def backward(ctx, g):
        transitions, states = ctx.saved_tensors
        # The gradient of S_n is that of the output plus P_nᵀ times that of S_{n+1}.
        reverse = g.flip(1)
        totals = scan(transitions.flip(1).mT, reverse[:, 1:], reverse[:, 0]).flip(1)
        g_additions = totals[:, 1:]
        return g_additions @ states[:, :-1].mT, g_additions, totals[:, 0]
