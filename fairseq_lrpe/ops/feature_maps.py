"""Kernel feature maps ϕ of linear attention, elementwise and non-negative."""

import torch
import torch.nn.functional as F


class _Elu(torch.autograd.Function):
    """1 + elu(x), whose gradient needs its output alone, which the product after it keeps as well."""

    @staticmethod
    def forward(ctx, x):
        y = _one_plus_elu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y.clamp(max=1)  # y is e^x below 0, and above 1 from there on


def _one_plus_elu(x):
    # e^x, and not e^x - 1 + 1, which half precision rounds to 0 from -8 on. In place, for autocast would
    # make the result of exp float32.
    return x.clamp(max=0).exp_().add_(x.clamp(min=0))


def _elu(x):
    return _Elu.apply(x) if x.requires_grad else _one_plus_elu(x)  # a decoding step is faster without


FEATURE_MAPS = {
    "elu": _elu,  # Katharopoulos et al. 2020, Eq. 7
    "relu": F.relu,  # cosFormer, Qin et al. 2022
    "exp": torch.exp,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
}
