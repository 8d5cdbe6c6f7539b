"""Memory and dtypes of the states of incremental decoding."""

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed
from fairseq_lrpe.ops.constants import is_tracing

_MAX_STORAGE = 1.25
"""Maximum size of the storage of a tensor in a state, relative to the tensor."""


def own_storage(state):
    """Returns a state whose tensors do not keep a larger tensor in memory, such as the prompt, as views do.

    Args:
        state: a tensor, or tensors in dicts and named tuples.
    """
    if isinstance(state, Tensor):
        if is_tracing() or is_transformed():  # there is no storage
            return state
        if state.untyped_storage().nbytes() <= _MAX_STORAGE * state.nbytes:
            return state
        return state.clone(memory_format=torch.contiguous_format)
    if isinstance(state, dict):
        return {key: own_storage(x) for key, x in state.items()}
    return type(state)(*map(own_storage, state)) if isinstance(state, tuple) else state


def dtype_names(state) -> dict[str, str]:
    """Returns the name of the dtype, such as "float32", of each floating point tensor of a state."""
    found = {}
    for name, x in state.items():
        if isinstance(x, tuple):
            found |= {f"{name}.{key}": dtype for key, dtype in dtype_names(x._asdict()).items()}
        elif isinstance(x, Tensor) and x.is_floating_point():
            found[name] = str(x.dtype).removeprefix("torch.")
    return found


def check_dtypes(found: dict[str, str], returned: dict[str, str]) -> None:
    """Raises a ValueError if a tensor of a state has a narrower dtype than when it was returned.

    Sums in half precision are wrong by tens of percent after some hundred steps.

    Args:
        found: the :func:`dtype_names` of the given state.
        returned: those of the state that the module returned.
    """
    if found == returned:
        return
    for name, dtype in returned.items():
        before, now = getattr(torch, dtype), getattr(torch, found.get(name, dtype))
        if torch.promote_types(before, now) != now:
            raise ValueError(
                f"{name} of the state was returned in {before} and is now in {now}, which loses precision at "
                "every step: do not convert states; FSDP needs "
                "MixedPrecisionPolicy(cast_forward_inputs=False) without an output_dtype"
            )
