"""What a decoder keeps of the segments before, for the task ``memory_lm`` (Dai et al. 2019)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fairseq_lrpe.attention import LinearAttention, SelfAttention, SoftmaxAttention, build_attention
from fairseq_lrpe.encodings import ENCODINGS
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


def memory_of(decoder: nn.Module, cfg, task) -> Memory | None:
    """Returns the memory that a task's flags ask for; ValueError where a model's cannot be met with it."""
    state = task.memory == "state"
    if not (state or task.memory_length):
        return None
    for attention in (layer.self_attn for layer in decoder.layers):
        check_memory(attention, cfg, task)
        attention.segment = task.tokens_per_sample
        attention.encoding.clamp_length = task.clamp_length
        if not state:
            attention.memory_length = task.memory_length
        if task.same_length:
            attention.window = task.memory_length
    return StateMemory(decoder.layers) if state else Memory(decoder.layers, task.memory_length)


def check_request(cfg, task) -> None:
    """Refuses, by ValueError, a memory that a model of these flags cannot have, before it is built."""
    sizes = {"embed_dim": cfg.decoder_embed_dim, "num_heads": cfg.decoder_attention_heads}
    with torch.random.fork_rng(devices=[]):
        attention = build_attention(cfg, dropout=0.0, causal=True, layer=1, max_positions=2, **sizes)
    check_memory(attention, cfg, task)


def check_memory(attention: SelfAttention, cfg, task) -> None:
    """Refuses, by ValueError, a memory that a decoder of such attention and flags cannot have."""
    if not (task.memory_length or task.memory == "state"):
        return
    places = cfg.token_positions
    if places != "none" and not (places == "sinusoidal" and cfg.no_token_positional_embeddings):
        raise ValueError(
            f"{places} token positions start anew with each segment, and a memory's would be taken for the "
            "segment's own: give --token-positions none"
        )
    encoding = attention.encoding
    if encoding.absolute:
        known = ", ".join(name for name, cls in ENCODINGS.items() if not cls.absolute)
        raise ValueError(
            f"{encoding.name} counts positions from the start of what is read, and a memory would move them: "
            f"use one of {known}"
        )
    if cfg.checkpoint_activations:
        raise ValueError(
            "--checkpoint-activations reads a segment twice, and a memory would keep it twice: drop it"
        )
    if task.clamp_length and not attention.encoding.by_distance:
        known = ", ".join(name for name, cls in ENCODINGS.items() if cls.by_distance)
        raise ValueError(
            f"--clamp-length is for encodings that look distances up, which {attention.encoding.name} does "
            f"not: drop it, or use one of {known}"
        )
    if task.memory == "state":
        check_state(attention)
    if task.same_length and not isinstance(attention, SoftmaxAttention):
        raise ValueError("--same-length hides what running sums have added up: use softmax attention")


def check_state(attention: SelfAttention) -> None:
    """Refuses, by ValueError, attention whose state grows, or cannot be moved to other positions."""
    if not isinstance(attention, LinearAttention):
        raise ValueError("--memory state is of linear attention's running sums: give --memory hidden")
    encoding = attention.encoding
    nothing = torch.zeros(1, encoding.num_heads, 1, encoding.head_dim)
    try:
        encoding.earlier(encoding(nothing, nothing)[1], 1)
        encoding.earlier_values(encoding.encode_values(nothing), 1)
    except ValueError as error:
        raise ValueError(f"{error}: give --memory hidden") from None
