"""Feature maps ϕ of linear attention, which keep the number of features."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lrpe.ops.autograd import apply


class _Elu(torch.autograd.Function):
    """Autograd function of 1 + elu(x), which saves only its output, as the next operation does anyway."""

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


def _identity(x):
    return x


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": _elu,  # Katharopoulos et al. 2020, Eq. 7
    "relu": F.relu,  # cosFormer, Qin et al. 2022
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "softmax": partial(
        F.softmax, dim=-1
    ),  # Hedgehog's normalization (Zhang et al. 2024), without its layer and negative half
    "silu": F.silu,  # Lightning Attention, Qin et al. 2024; DeltaNet, Yang et al. 2024
    "identity": _identity,  # GLA, Yang et al. 2024
}
SIGNED_FEATURE_MAPS = ("silu", "identity")
"""Feature maps with negative values, for which the sum of the weights can be 0."""


def check_divisor(feature_map: str, linear_norm: str) -> None:
    """Raises a ValueError if ``linear_norm`` divides by a sum of weights that can be 0."""
    if feature_map in SIGNED_FEATURE_MAPS and linear_norm in ("denominator", "content"):
        raise ValueError(
            f"the feature map {feature_map!r} has negative values, so that the sum of the weights can be 0: "
            f"use the linear norm layernorm or rmsnorm instead of {linear_norm}"
        )
