"""Kernel feature maps ϕ of linear attention, which are elementwise and non-negative."""

import torch
import torch.nn.functional as F

from fairseq_lrpe.ops.autograd import apply


class _Elu(torch.autograd.Function):
    """Computes 1 + elu(x); saves only the output for backward, which the next operation saves anyway."""

    @staticmethod
    def plain(x):
        return torch.where(x < 0, x.clamp(max=0).exp().to(x.dtype), 1 + x)

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
    # In half precision, 1 + (e^x - 1) would be rounded to 0 for x below -8. Operations are in-place because
    # autocast would return exp in float32.
    return x.clamp(max=0).exp_().add_(x.relu())


def _elu(x):
    # Skipping the autograd function makes decoding faster.
    return apply(_Elu, x) if x.requires_grad else _one_plus_elu(x)


FEATURE_MAPS = {
    "elu": _elu,  # Katharopoulos et al. 2020, Eq. 7
    "relu": F.relu,  # cosFormer, Qin et al. 2022
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
}
