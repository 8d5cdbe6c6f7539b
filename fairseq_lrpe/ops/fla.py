"""Causal linear attention through the Triton kernels of flash-linear-attention (the extra ``gpu``)."""

from importlib.util import find_spec

import torch

from fairseq_lrpe.ops.chunk import chunk


def fla(q, k, v, *, causal, log_decay, **options):
    """See :func:`fairseq_lrpe.ops.linear_attention`; what is not causal are the chunk form's two products.

    The kernels choose their own chunks. They multiply float32 in TF32 where the GPU can, unless the
    environment variable TRITON_F32_DEFAULT=ieee is set.
    """
    if find_spec("fla") is None:
        raise ValueError(
            "backend 'fla' needs the package flash-linear-attention: pip install 'fairseq-lrpe[gpu]'"
        )
    if not fla_can(q, k, v, log_decay):
        raise ValueError(
            f"backend 'fla' computes in float32 on CUDA, without a gradient for log_decay; q is {q.dtype} on "
            f"{q.device.type}: use backend 'chunk'"
        )
    if not causal or q.size(-2) <= 1:
        return chunk(q, k, v, causal=causal, log_decay=log_decay, **options)
    return _causal(q, k, v, log_decay=log_decay, **options)


def fla_can(q, k, v, log_decay):
    """Whether the package is there and its kernels can do this."""
    return (
        find_spec("fla") is not None
        and q.is_cuda
        and torch.float64 not in (q.dtype, k.dtype, v.dtype)
        and not (log_decay is not None and log_decay.requires_grad)
    )


def _causal(q, k, v, *, normalize, log_decay, state, return_state, chunk_size, eps, dtype):
    from fla.ops.simple_gla import chunk_simple_gla

    # In half precision the kernels would keep the states between chunks in half precision too.
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    counts = normalize or return_state
    if counts:
        # A column of ones beside v sums the scores: the denominator, and Σ k in the state.
        v = torch.cat((v, v.new_ones(*v.shape[:-1], 1)), -1)
    if state is not None:
        state = torch.cat((state[0], state[1][..., None]), -1) if counts else state[0]
    rows = (x.transpose(1, 2) for x in (q, k, v))
    out = chunk_simple_gla(*rows, g_gamma=log_decay, scale=1.0, initial_state=state)[0].transpose(1, 2)
    if counts:
        out, denominator = out[..., :-1], out[..., -1:]
    if normalize:
        out = out / denominator.clamp(min=eps)
    if not return_state:
        return out

    # Not the kernel's own last state: under a strong decay (log γ < -1.4) that is NaN where the last chunk
    # is not full (flash-linear-attention 0.6.0).
    if log_decay is not None:
        age = torch.arange(k.size(-2), 0, -1, device=k.device) - 1
        k = k * torch.exp(log_decay[:, None] * age)[..., None]
        if state is not None:
            state = state * torch.exp(log_decay * k.size(-2))[:, None, None]
    last = k.mT @ v if state is None else k.mT @ v + state
    return out, (last[..., :-1], last[..., -1])
