"""Layers whose weights can be read directly, and layers that have to be called.

An adapter such as LoRA, a hook, or quantization changes what a layer computes, but not its ``weight``.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS = tuple(getattr(torch_module, f"_global{name}") for name in _HOOKS)


def is_unchanged(layer: nn.Module, cls: type[nn.Module]) -> bool:
    """Returns whether a layer computes what its class ``cls`` does, from nothing but its parameters."""
    if type(layer) is not cls or any(_GLOBAL_HOOKS):
        return False
    own = vars(layer)
    if "forward" in own or any(own[name] for name in _HOOKS):  # libraries also replace ``forward``
        return False
    return all(type(x) is nn.Parameter or x is None for x in own["_parameters"].values())


def embedding_rows(embedding: nn.Module, count: int, device: torch.device) -> Tensor:
    """Returns the first ``count`` rows of an embedding table."""
    if isinstance(embedding, nn.Embedding) and is_unchanged(embedding, nn.Embedding):
        return embedding.weight[:count]
    return embedding(torch.arange(count, device=device))
