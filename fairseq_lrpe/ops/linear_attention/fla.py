"""Causal linear attention through the Triton kernels of flash-linear-attention (the extra ``gpu``)."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from fairseq_lrpe.ops.linear_attention.chunk import chunk
from fairseq_lrpe.ops.linear_attention.state import Call, LinearState, add_keys

LEAST = (8, 0)
"""The compute capability from which on Triton supports a GPU."""


def fla(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention`; what is not causal as the chunk form does.

    The kernels choose their own chunks. They multiply float32 in TF32 where the GPU can, unless the
    environment variable TRITON_F32_DEFAULT=ieee is set.
    """
    if reason := fla_lacks(q.device):
        raise ValueError(f"backend 'fla' needs {reason}: use backend 'chunk'")
    if not fla_can(q, k, v, call.log_decay):
        raise ValueError(
            "backend 'fla' computes in float32, without a gradient for log_decay, which is each head's own, "
            f"not each feature's, and q is {q.dtype}: use backend 'chunk'"
        )
    return _causal(q, k, v, call) if call.causal and q.size(-2) > 1 else chunk(q, k, v, call)


@cache  # asked in every layer of every step
def fla_lacks(device: torch.device) -> str | None:
    """Returns what the kernels need to run on a device and is not there; None where they run."""
    if device.type != "cuda":
        return f"a GPU and not the {device.type}"
    if (capability := torch.cuda.get_device_capability(device)) < LEAST:
        name = torch.cuda.get_device_name(device)
        return "compute capability {}.{}, and {} has {}.{}".format(*LEAST, name, *capability)
    return None if find_spec("fla") else "the package fla-core (pip install 'fairseq-lrpe[gpu]')"


def fla_can(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> bool:
    """Returns whether the package is there and its kernels can do this."""
    return (
        fla_lacks(q.device) is None
        and torch.float64 not in (q.dtype, k.dtype, v.dtype)
        and not (log_decay is not None and (log_decay.requires_grad or log_decay.shape != (q.size(1), 1)))
    )


def _causal(q, k, v, call):
    from fla.ops.simple_gla import chunk_simple_gla

    # In half precision the kernels would keep the states between chunks in half precision too.
    q, k, v, first = q.to(call.dtype), k.to(call.dtype), v.to(call.dtype), call.state
    # A column of ones beside v sums the scores: the denominator, and Σ k in the state.
    values = torch.cat((v, v.new_ones(*v.shape[:-1], 1)), -1) if call.normalize else v
    if first is not None:
        first = torch.cat((first.kv, first.k_sum[..., None]), -1) if call.normalize else first.kv
    rows = (x.transpose(1, 2) for x in (q, k, values))
    decay = None if call.log_decay is None else call.log_decay.squeeze(-1)
    out, _ = chunk_simple_gla(*rows, g_gamma=decay, scale=1.0, initial_state=first)
    out = out.transpose(1, 2)
    if call.normalize:
        out = out[..., :-1] / out[..., -1:].clamp(min=call.eps)
    # Not the kernel's own last state: under a strong decay (log γ < -1.4) that is NaN where the last chunk
    # is not full (flash-linear-attention 0.6.0).
    return (out, add_keys(call.state, k, v, call.log_decay)) if call.return_state else out
