"""Results of linear attention with all gradients, for comparisons of its backends."""

import torch

from fairseq_lrpe.ops import linear_attention
from support.tensors import randn, with_gradients


def positive(*shape, seed=0):
    """Returns random float64 numbers between 0 and 1, as after a feature map: no denominator is small."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_inputs(queries, keys, d=3, dv=4, batch=2, heads=2, state=False):
    """Returns float64 tensors by argument name; "kv" and "k_sum" are the initial state."""
    inputs = {
        "q": positive(batch, heads, queries, d, seed=1),
        "k": positive(batch, heads, keys, d, seed=2),
        "v": randn(batch, heads, keys, dv, seed=3),
    }
    if state:
        inputs["kv"] = randn(batch, heads, d, dv, seed=4)
        inputs["k_sum"] = positive(batch, heads, d, seed=5)
    return inputs


def attend(q, k, v, *, kv=None, k_sum=None, **options):
    state = None if kv is None else (kv, k_sum)
    out, new = linear_attention(q, k, v, state=state, return_state=True, **options)
    return out, *new


def results(inputs, function=attend, **options):
    """Returns the outputs of ``function(**inputs, **options)``, and the gradients of all inputs."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    return with_gradients(function(**leaves, **options), list(leaves.values()))
