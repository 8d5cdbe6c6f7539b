"""Computation in float64, also for devices without it."""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.ops.meta import meta_replaces_gpu

FLOAT64_DEVICES = ("cpu", "cuda")
"""Types of devices that have float64."""


def float64_options(device: torch.device | str) -> dict[str, Any]:
    """Returns the keyword arguments ``device`` and ``dtype`` of float64 tensors for operands on ``device``.

    CPUs and CUDA GPUs have float64. For other devices, such as Apple's MPS, which may lack it, the options
    are those of the CPU. Meta tensors have no values and stay on their device, in float32 unless they replace
    those of a GPU.
    """
    device = torch.device(device)
    if device.type in FLOAT64_DEVICES or (device.type == "meta" and meta_replaces_gpu()):
        return {"device": device, "dtype": torch.float64}
    if device.type == "meta":
        return {"device": device, "dtype": torch.float32}
    return {"device": torch.device("cpu"), "dtype": torch.float64}


def to_float64(x: Tensor) -> Tensor:
    """Returns x with the device and dtype of :func:`float64_options`."""
    options = float64_options(x.device)
    return x.to(options["device"]).to(options["dtype"])  # the device of x may not support the conversion
