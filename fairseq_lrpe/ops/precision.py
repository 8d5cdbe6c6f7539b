"""Parameters that stay in float32 in models of half precision."""

import re
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn


def sum_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Returns the dtype of sums of products of real tensors: float64 if one is float64, else float32."""
    # torch dispatches `promote_types` like an operation on tensors, which takes as long.
    return torch.float64 if torch.float64 in dtypes else torch.float32


def at_least_float32(x: Tensor) -> Tensor:
    """Returns x in float32, or unchanged if its dtype is wider."""
    return x.to(sum_dtype(x.dtype))


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Returns a context without autocast, which would compute in half precision on ``device``."""
    if device.type == "meta":
        return nullcontext()
    # A compiled backward pass runs with the autocast of the caller, not with that of the traced function.
    if not (torch.is_autocast_enabled(device.type) or torch.compiler.is_dynamo_compiling()):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class Float32Parameters(nn.Module):
    """Base class of modules in which some parameters have at least float32, whatever the model's dtype.

    A parameter that is multiplied by a position, such as an angle, must not be rounded to half precision: in
    bfloat16, an angle of 1 per position may be wrong by 2 radians at position 1,000. ``.half()``,
    ``.bfloat16()`` and ``.to(dtype)`` therefore convert the ``float32_parameters``, and their gradients, to
    float32 at least. Their values in a state dict of half precision are converted, too.
    """

    float32_parameters: tuple[str, ...] = ()
    """Names of the parameters and buffers that have at least float32, such as "theta" or "linear.weight"."""

    def _keeps_float32(self, name):
        """Returns whether a name is one of ``float32_parameters``, or that of a tensor that determines one.

        The ``parametrize`` of torch renames "slope" to "parametrizations.slope.original", with a number if it
        is computed from several tensors.
        """
        name = re.sub(r"parametrizations\.(\w+)\.original\d*$", r"\1", name)
        return re.sub(r"_(orig|g|v)$", "", name) in self.float32_parameters or name in self.float32_parameters

    def _apply(self, fn, recurse=True):
        named = chain(self.named_parameters(), self.named_buffers())
        kept = [x for name, x in named if self._keeps_float32(name)]
        kept += [x.grad for x in kept if x.grad is not None]

        def convert(x):
            new = fn(x)
            dtype = sum_dtype(new.dtype)
            if new.dtype == dtype or not any(x is y for y in kept):
                return new
            return (new if new.dtype == x.dtype else x).to(new.device, dtype)  # x is not rounded

        return super()._apply(convert, recurse)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for key in [key for key in state_dict if key.startswith(prefix)]:
            if self._keeps_float32(key.removeprefix(prefix)):
                state_dict[key] = at_least_float32(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args)
