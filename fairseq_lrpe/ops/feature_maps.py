"""Kernel feature maps ϕ of linear attention, elementwise and non-negative."""

import torch
import torch.nn.functional as F

FEATURE_MAPS = {
    "elu": lambda x: 1 + F.elu(x),  # Katharopoulos et al. 2020, Eq. 7
    "relu": F.relu,  # cosFormer, Qin et al. 2022
    "exp": torch.exp,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
}
