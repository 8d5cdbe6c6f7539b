"""Kernel feature maps ϕ of linear attention, elementwise and non-negative."""

import torch
import torch.nn.functional as F


class _Elu(torch.autograd.Function):
    """1 + elu(x); backward needs only the output, which the product that follows also stores."""

    @staticmethod
    def forward(ctx, x):
        y = _one_plus_elu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y.clamp(max=1)  # y is e^x for x < 0 and above 1 otherwise


def _one_plus_elu(x):
    # Not 1 + (e^x - 1), which half precision rounds to 0 below -8. In-place, because autocast would return
    # exp in float32.
    return x.clamp(max=0).exp_().add_(x.clamp(min=0))


def _elu(x):
    return _Elu.apply(x) if x.requires_grad else _one_plus_elu(x)  # the latter is faster while decoding


FEATURE_MAPS = {
    "elu": _elu,  # Katharopoulos et al. 2020, Eq. 7
    "relu": F.relu,  # cosFormer, Qin et al. 2022
    "exp": torch.exp,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
}
