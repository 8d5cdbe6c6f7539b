"""Memory of previous segments in decoders, for the task ``memory_lm`` (Dai et al. 2019)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fairseq_lrpe.attention import LinearAttention, SelfAttention, SoftmaxAttention
from fairseq_lrpe.config import recomputes_activations
from fairseq_lrpe.encodings import ENCODINGS
from fairseq_lrpe.tasks.memory_lm import Segment
from fairseq_lrpe.utils.errors import UserError

logger = logging.getLogger(__name__)


class Memory:
    """Memory of the last ``length`` inputs of each layer in previous segments, without their gradients.

    A text is split into streams that are processed in parallel. Each batch of streams has its own memory,
    separately in training and for each evaluated split. A memory starts empty, and is discarded if it does
    not end with the preceding segment.
    """

    def __init__(self, layers: list[nn.Module], length: int = 0):
        self.layers, self.length = layers, length
        self.saved = {}
        """{(training, split, first stream, number of streams): (last segment, memory of each layer)}"""

    @contextmanager
    def attached(self, segment: Segment, streams: int, training: bool) -> Iterator[None]:
        """Attaches the memory to the layers while they process a segment, and saves the updated memory.

        ``streams`` is the number of streams in the batch.
        """
        if training:  # frees the memory of a finished evaluation, which may be large
            self.saved = {key: saved for key, saved in self.saved.items() if key[0]}
        key = (training, segment.split, segment.stream, streams)
        number, memories = self.saved.pop(key, (None, None))
        if number != segment.number - 1 or memories is None:
            memories = [None] * len(self.layers)
            if training and segment.number:
                logger.info("the memory starts empty at segment %d", segment.number)
        for layer, memory in zip(self.layers, memories, strict=True):
            self.attach(layer, memory)
        try:
            yield
            self.saved[key] = segment.number, [self.updated(layer) for layer in self.layers]
        finally:
            for layer in self.layers:
                self.detach(layer)

    def attach(self, layer: nn.Module, memory: object) -> None:
        """Sets the memory of a layer, where None is an empty memory."""
        layer.memory, layer.keep_inputs = memory, True

    def updated(self, layer: nn.Module) -> object:
        """Returns the memory of a layer after a segment."""
        parts = [x for x in (layer.memory, layer.inputs) if x is not None]
        return torch.cat(parts)[-self.length :].detach()

    def detach(self, layer: nn.Module) -> None:
        """Removes the memory of a layer."""
        layer.memory, layer.inputs, layer.keep_inputs = None, None, False


class StateMemory(Memory):
    """Memory that provides each layer of linear attention with the running sums over all previous segments.

    Its size is constant. Each segment starts at position 0. The sums are shifted by the segment's length
    afterwards, so that positions do not grow without bound.
    """

    def attach(self, layer, memory):
        layer.self_attn.carry_state, layer.self_attn.carried_state = True, memory

    def updated(self, layer):
        return tree_map_only(torch.Tensor, torch.Tensor.detach, layer.self_attn.carried_state)

    def detach(self, layer):
        layer.self_attn.carry_state, layer.self_attn.carried_state = False, None


def build_memory(decoder: nn.Module, cfg, task) -> Memory | None:
    """Returns the memory that the task's flags select, or None; raises a UserError if it is unsupported."""
    state = task.memory == "state"
    if not (state or task.memory_length):
        return None
    for attention in (layer.self_attn for layer in decoder.layers):
        check_memory(attention, cfg, task)
        attention.segment_length = task.tokens_per_sample
        attention.encoding.clamp_length = task.clamp_length
        if not state:
            attention.memory_length = task.memory_length
        if task.same_length:
            attention.window = task.memory_length
    return StateMemory(decoder.layers) if state else Memory(decoder.layers, task.memory_length)


def check_memory(attention: SelfAttention, cfg, task) -> None:
    """Raises a UserError if a decoder with this attention and these flags does not support the memory."""
    positions, encoding = cfg.token_positions, attention.encoding
    if positions != "none" and not (positions == "sinusoidal" and cfg.no_token_positional_embeddings):
        raise UserError(
            f"{positions} token positions restart in each segment, so a memory does not support them: pass "
            "--token-positions none"
        )
    if encoding.uses_absolute_positions:
        known = ", ".join(name for name, cls in ENCODINGS.items() if not cls.uses_absolute_positions)
        raise UserError(
            f"{encoding.name} uses absolute positions, which a memory does not support: use one of {known}"
        )
    if recomputes_activations(cfg):
        raise UserError("--checkpoint-activations is not supported with a memory: omit it")
    if cfg.decoder_layerdrop:
        raise UserError(
            "--decoder-layerdrop is not supported with a memory, which each layer extends: omit it"
        )
    if task.clamp_length and not encoding.uses_distance_table:
        known = ", ".join(name for name, cls in ENCODINGS.items() if cls.uses_distance_table)
        raise UserError(
            f"--clamp-length is not supported by {encoding.name}, which does not look up distances: omit it, "
            f"or use one of {known}"
        )
    if task.memory == "state":
        check_state(attention)
    if task.same_length and not isinstance(attention, SoftmaxAttention):
        raise UserError("--same-length requires softmax attention: omit it, or pass --arch softmax_lm_...")


def check_state(attention: SelfAttention) -> None:
    """Raises a UserError if the state of the attention is not of constant size, or cannot be shifted."""
    if not isinstance(attention, LinearAttention):
        raise UserError("--memory state requires linear attention: pass --memory hidden")
    encoding = attention.encoding
    zeros = torch.zeros(1, encoding.num_heads, 1, encoding.head_dim)
    try:
        encoding.shift_keys(encoding(zeros, zeros)[1], 1)
        encoding.shift_values(encoding.encode_values(zeros), 1)
    except ValueError as error:
        raise UserError(f"{error}: pass --memory hidden") from None
