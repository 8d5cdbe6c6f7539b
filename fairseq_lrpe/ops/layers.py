"""Layers whose weights can be read directly, and layers that have to be called.

An adapter such as LoRA, a hook, or quantization changes what a layer computes, but not its ``weight``.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def is_unchanged(layer: nn.Module, cls: type[nn.Module]) -> bool:
    """Returns whether calling a layer computes what ``cls`` does, from its parameters and nothing else."""
    if type(layer) is not cls or "forward" in vars(layer):  # libraries also replace ``forward``
        return False
    if any(vars(layer)[name] for name in _HOOKS) or any(vars(torch_module)[f"_global{x}"] for x in _HOOKS):
        return False
    return all(type(parameter) is nn.Parameter for parameter in layer.parameters(recurse=False))


def embedding_rows(embedding: nn.Module, count: int, device: torch.device) -> Tensor:
    """Returns the first ``count`` rows of an embedding table."""
    if is_unchanged(embedding, nn.Embedding):
        return embedding.weight[:count]
    return embedding(torch.arange(count, device=device))
