"""What a decoder keeps of the segments before, for the task ``memory_lm`` (Dai et al. 2019)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fairseq_lrpe.attention import LinearAttention, SoftmaxAttention
from fairseq_lrpe.tasks.memory_lm import Segment

logger = logging.getLogger(__name__)


class Memory:
    """Gives each layer its inputs of the segments before, the last ``length`` of them, without gradients.

    Each group of streams has a memory, of training and of every split that is evaluated a separate one. It
    starts empty, and one that is not of the segment before is not used.
    """

    def __init__(self, layers: list[nn.Module], length: int = 0):
        self.layers, self.length = layers, length
        self.kept = {}
        """{(training, split, first stream, streams): (number of the segment, what each layer keeps)}"""

    @contextmanager
    def around(self, segment: Segment, streams: int, training: bool) -> Iterator[None]:
        """The layers see their memory inside, and what they read is kept at the end."""
        if training:  # an evaluation is over, and its memory may be large
            self.kept = {key: kept for key, kept in self.kept.items() if key[0]}
        key = (training, segment.split, segment.stream, streams)
        number, before = self.kept.pop(key, (None, None))
        if number != segment.number - 1 or before is None:
            before = [None] * len(self.layers)
            if training and segment.number:
                logger.info("the memory starts empty at segment %d", segment.number)
        for layer, memory in zip(self.layers, before, strict=True):
            self.give(layer, memory)
        try:
            yield
            self.kept[key] = segment.number, [self.after(layer) for layer in self.layers]
        finally:
            for layer in self.layers:
                self.take(layer)

    def give(self, layer: nn.Module, memory: object) -> None:
        """Lets a layer see its memory, None of an empty one."""
        layer.memory, layer.remembers = memory, True

    def after(self, layer: nn.Module) -> object:
        """Returns the memory of a layer that has read a segment."""
        parts = [x for x in (layer.memory, layer.inputs) if x is not None]
        return torch.cat(parts)[-self.length :].detach()

    def take(self, layer: nn.Module) -> None:
        """Leaves nothing in a layer."""
        layer.memory, layer.inputs, layer.remembers = None, None, False


class StateMemory(Memory):
    """Gives each layer of linear attention the running sums of all segments before: of constant size.

    A segment's positions start at 0, and the sums are moved as much after it: no position grows without end.
    """

    def give(self, layer, memory):
        layer.self_attn.carries, layer.self_attn.carried = True, memory

    def after(self, layer):
        return tree_map_only(torch.Tensor, torch.Tensor.detach, layer.self_attn.carried)

    def take(self, layer):
        layer.self_attn.carries, layer.self_attn.carried = False, None


def memory_of(decoder, model, task) -> Memory | None:
    """Returns the memory that a task's flags ask for; ValueError where a model's cannot be met with it."""
    state = task.memory == "state"
    if not (state or task.memory_length):
        return None
    if model.token_positions != "none":
        raise ValueError(
            f"{model.token_positions} token positions start anew with each segment, and those of the memory "
            "would be taken for its own: give --token-positions none"
        )
    if model.checkpoint_activations:
        raise ValueError(
            "--checkpoint-activations reads a segment twice and would remember it twice: drop it"
        )
    for attention in (layer.self_attn for layer in decoder.layers):
        encoding = attention.encoding
        if task.clamp_length and not encoding.by_distance:
            raise ValueError(
                f"--clamp-length is for encodings that look distances up, not for {encoding.name}: drop it"
            )
        encoding.clamp_length = task.clamp_length
        attention.segment = task.tokens_per_sample
        if state:
            check_state(attention)
        else:
            attention.memory_length = task.memory_length
        if task.same_length:
            if not isinstance(attention, SoftmaxAttention):
                raise ValueError("--same-length hides what running sums have added up: use softmax attention")
            attention.window = task.memory_length
    return StateMemory(decoder.layers) if state else Memory(decoder.layers, task.memory_length)


def check_state(attention) -> None:
    """Refuses, by ValueError, attention whose state has no constant size, or cannot be moved."""
    if not isinstance(attention, LinearAttention):
        raise ValueError("--memory state is of linear attention's running sums: give --memory hidden")
    encoding = attention.encoding
    nothing = torch.zeros(1, encoding.num_heads, 1, encoding.head_dim)
    try:
        encoding.earlier(encoding(nothing, nothing)[1], 1)
        encoding.earlier_values(encoding.encode_values(nothing), 1)
    except ValueError as error:
        raise ValueError(f"{error}: give --memory hidden") from None
