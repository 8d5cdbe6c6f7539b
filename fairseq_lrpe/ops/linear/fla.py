"""Causal linear attention through the Triton kernels of flash-linear-attention (the extra ``gpu``)."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from fairseq_lrpe.ops.autograd import is_transformed, needs_plain_backward
from fairseq_lrpe.ops.constants import derived
from fairseq_lrpe.ops.linear.chunk import chunk
from fairseq_lrpe.ops.linear.state import Arguments, LinearState, update_state
from fairseq_lrpe.ops.torch_internals import mark_constant

MIN_COMPUTE_CAPABILITY = (8, 0)
"""Lowest compute capability that Triton supports."""
MIN_WIDTH = 16
"""Smallest number of columns of a block that Triton multiplies."""


def fla(q: Tensor, k: Tensor, v: Tensor, args: Arguments) -> Tensor | tuple[Tensor, LinearState]:
    """Computes :func:`fairseq_lrpe.ops.linear_attention` with the kernels of flash-linear-attention.

    Without decay, and with one decay per head, these are the kernels of ``simple_gla``. If each feature has
    its own decay, the kernels of ``gla`` (gated linear attention, Yang et al. 2024) are used, which read a
    decay for every element of q. A learned constant decay is repeated for every position, because the kernels
    do not return the gradient of a constant one.

    ``chunk`` computes what the kernels cannot: bidirectional attention, a single query, an empty batch,
    transforms of ``torch.func``, decays of fewer than 16 features or with fewer than 16 values (Triton
    multiplies blocks of at least 16), and on Hopper GPUs with Triton 3.4.0 to 3.7.0, decays of heads that
    vary or are learned, whose gradients are wrong there. The kernels ignore ``chunk_size``, and have no
    second derivatives. The kernels multiply float32 in TF32 on GPUs that support TF32, unless the environment
    variable TRITON_F32_DEFAULT=ieee is set.

    Raises:
        ValueError: if the kernels are not installed or cannot run on this device, or for float64.
        RuntimeError: in a backward pass with ``create_graph=True``.
    """
    if reason := missing_requirement(q.device):
        raise ValueError(f"backend 'fla' needs {reason}: use backend 'chunk'")
    if not fla_supports(q, k, v):
        raise ValueError("backend 'fla' does not support float64 for q, k or v: use backend 'chunk'")
    if is_transformed() or not _can_compute(q, v, args):
        return chunk(q, k, v, args)
    return _causal(q, k, v, args)


def _can_compute(q, v, args):
    if not args.causal or q.size(-2) < 2 or q.size(0) == 0:
        return False
    if args.log_decay is None:
        return True
    if args.log_decay.size(-1) > 1:
        return min(q.size(-1), v.size(-1)) >= MIN_WIDTH
    is_gate = args.log_decay.size(2) > 1 or args.log_decay.requires_grad
    return not (is_gate and _gates_have_wrong_gradients(q.device))


@cache
def _gates_have_wrong_gradients(device):
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    return "3.4.0" <= TorchVersion(import_module("triton").__version__) < "3.7.1"


@mark_constant
def missing_requirement(device: torch.device, backend: str = "fla") -> str | None:
    """Returns a description of what the kernels lack to run on the device, or None if they can run."""
    return _missing_requirement(device, backend)


@cache  # called by every layer in every step
def _missing_requirement(device, backend):
    if device.type != "cuda":
        return f"a CUDA GPU (the device is {device.type})"
    if (capability := torch.cuda.get_device_capability(device)) < MIN_COMPUTE_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        return "compute capability {}.{}, and {} has {}.{}".format(*MIN_COMPUTE_CAPABILITY, name, *capability)
    package = {"fla": "fla-core", "triton": "triton"}[backend]
    return None if find_spec(backend) else f"the package {package} (pip install '.[gpu]' in the checkout)"


def fla_supports(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Returns whether the kernels can run on the device of q and support the dtypes."""
    return missing_requirement(q.device) is None and torch.float64 not in (q.dtype, k.dtype, v.dtype)


def _causal(q, k, v, args):
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    # For half-precision input, the kernels would also store the output, the states and the gradients in half
    # precision. Sums before the division exceed float16's range, and the gradient of q, the difference of
    # large sums, would be wrong by up to 72% (docs/gpu.md).
    q = q.to(args.dtype)
    k = k.to(args.dtype)
    v = v.to(args.dtype)
    initial = args.state
    # A column of ones in v gives the sums of the scores, which are the denominator.
    values = torch.cat((v, v.new_ones(*v.shape[:-1], 1)), -1) if args.normalize else v
    if initial is not None:
        initial = torch.cat((initial.kv, initial.k_sum[..., None]), -1) if args.normalize else initial.kv
    inputs = [x.transpose(1, 2) for x in (q, k, values)]
    log_decay = args.log_decay
    kernel = chunk_simple_gla
    if log_decay is None:
        decay = {}
    elif log_decay.size(-1) > 1:
        # A repeated constant decay is as large as q in float32, so it is not cached.
        log_decay = log_decay.transpose(1, 2)
        kernel = chunk_gla
        decay = {"g": log_decay.expand_as(inputs[0])}
    elif log_decay.size(2) > 1 or log_decay.requires_grad:
        decay = {"g": log_decay.squeeze(-1).transpose(1, 2).expand(inputs[0].shape[:-1])}
    else:
        decay = {"g_gamma": derived(_decay_of_heads, log_decay, q.size(1))}
    out, _ = kernel(*inputs, **decay, scale=1.0, initial_state=initial)
    out = _FirstOrder.apply(out.transpose(1, 2))
    if args.normalize:
        out = out[..., :-1] / out[..., -1:].clamp(min=args.eps)
    # The kernel's final state is not used: in flash-linear-attention 0.6.0, it is NaN for a strong decay
    # (log γ < -1.4) if the last chunk is not full.
    return (out, update_state(args.state, k, v, args.log_decay)) if args.return_state else out


def _decay_of_heads(log_decay, heads):
    return log_decay.flatten().expand(heads).contiguous()


class _FirstOrder(torch.autograd.Function):
    """Identity that refuses second derivatives, of which the kernels would omit terms."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        if needs_plain_backward(g):
            raise RuntimeError("backend 'fla' has no second derivatives: use backend 'chunk'")
        return g
