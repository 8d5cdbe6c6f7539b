"""Parameters that stay in float32 in models of half precision."""

from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn


def at_least_float32(x: Tensor) -> Tensor:
    """Returns x in float32, or unchanged if its dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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

    def _apply(self, fn, recurse=True):
        named = chain(self.named_parameters(), self.named_buffers())
        kept = [x for name, x in named if name in self.float32_parameters]
        kept += [x.grad for x in kept if x.grad is not None]

        def convert(x):
            new = fn(x)
            dtype = torch.promote_types(new.dtype, torch.float32)
            if new.dtype == dtype or not any(x is y for y in kept):
                return new
            return (new if new.dtype == x.dtype else x).to(new.device, dtype)  # x is not rounded

        return super()._apply(convert, recurse)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for key in (prefix + name for name in self.float32_parameters):
            if key in state_dict:
                state_dict[key] = at_least_float32(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args)
