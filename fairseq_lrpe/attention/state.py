"""Memory and dtypes of the states of incremental decoding."""

from typing import Any

import torch
from torch import Tensor

from fairseq_lrpe.ops.autograd import is_transformed
from fairseq_lrpe.ops.constants import is_tracing

STATE_REMEDY = "pass the state that this module returned for the same batch"

_MAX_STORAGE = 1.25
"""Maximum size of the storage of a tensor in a state, relative to the tensor."""

_NAMES = {getattr(torch, name): name for name in ("float64", "float32", "bfloat16", "float16")}


def own_storage(state: Any) -> Any:
    """Returns a state without views, which would keep larger tensors in memory, such as those of the prompt.

    Args:
        state: a tensor, or tensors in dicts and named tuples.
    """
    return (
        state if is_tracing() or is_transformed() else _own_storage(state)
    )  # a traced tensor has no storage


def _own_storage(x):
    if isinstance(x, Tensor):
        if x.untyped_storage().nbytes() <= _MAX_STORAGE * x.nbytes:
            return x
        return x.clone(memory_format=torch.contiguous_format)
    if isinstance(x, dict):
        return {key: _own_storage(y) for key, y in x.items()}
    return type(x)(*map(_own_storage, x)) if isinstance(x, tuple) else x


def dtype_names(past: dict, *others: Tensor | None) -> str:
    """Returns the names of the floating point dtypes of a state, as a string, which torch.export accepts."""
    names = []
    for x in (*past.values(), *others):
        if isinstance(x, tuple):
            names += ["-" if y is None else _NAMES.get(y.dtype, "-") for y in x]
        elif not isinstance(x, str):
            names.append("-" if x is None else _NAMES.get(x.dtype, "-"))
    return " ".join(names)


def complete_state(state: Any) -> Any:
    """Returns an ``AttentionState`` for the caller, which has the names of its dtypes in addition."""
    past, _, inputs, feature_sum = state
    return state._replace(past={**past, "dtypes": dtype_names(past, inputs, feature_sum)})


def check_state(state: Any) -> None:
    """Raises a ValueError if a tensor of an ``AttentionState`` has a narrower dtype than when returned."""
    past = state.past or {}
    if "dtypes" in past:  # states of earlier versions have none
        check_dtypes(dtype_names(past, state.inputs, state.feature_sum), past["dtypes"])


def check_dtypes(found: str, returned: str) -> None:
    """Raises a ValueError if a tensor of a state has a narrower dtype than when it was returned.

    Sums in half precision would be wrong by tens of percent after some hundred steps.

    Args:
        found: the :func:`dtype_names` of the given state.
        returned: those of the state that the module returned.
    """
    if found == returned:
        return
    for now, before in zip(found.split(), returned.split(), strict=True):
        if before == "-" or now == "-":
            continue
        found_dtype = getattr(torch, now)
        if torch.promote_types(found_dtype, getattr(torch, before)) == found_dtype:
            continue
        raise ValueError(
            f"a tensor of the state was returned in {before} and is now in {now}, which loses precision at "
            "every step: do not convert states; FSDP needs MixedPrecisionPolicy(cast_forward_inputs=False) "
            "without an output_dtype"
        )
