"""Memory of previous segments in decoders, for the task ``memory_lm`` (Dai et al. 2019)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fairseq_lrpe.attention import AttentionState, SelfAttention, SoftmaxAttention
from fairseq_lrpe.config import recomputes_activations
from fairseq_lrpe.encodings import ENCODINGS, START, InputsMixin
from fairseq_lrpe.encodings.transformations import encode_values, shift_keys, shift_values
from fairseq_lrpe.tasks.memory_lm import Segment
from fairseq_lrpe.utils.errors import UserError

logger = logging.getLogger(__name__)


class InputMemory:
    """Memory of a layer: its inputs at the last ``length`` positions before a segment, without gradients."""

    def __init__(self, length: int):
        self.length = length
        self.inputs = None

    def arguments(self, layer: nn.Module) -> dict:
        """Returns the arguments that make the layer's attention use the memory."""
        if self.inputs is None:
            return {}
        return {"memory": layer.self_attn_layer_norm(self.inputs) if layer.normalize_before else self.inputs}

    def update(self, layer: nn.Module, x: Tensor, state: AttentionState | None) -> None:
        """Adds a segment to the memory, given the layer's inputs x (L, B, E) and its attention's state."""
        x = x if self.inputs is None else torch.cat([self.inputs, x])
        self.inputs = x[-self.length :].detach()


class StateMemory:
    """Memory of a layer: the running sums of its linear attention over all previous segments.

    The size of the memory is constant. Each segment starts at position 0. After a segment, the sums are
    shifted by its length, so that positions do not grow without bound.
    """

    state = None

    def arguments(self, layer):
        return {"state": self.state, "return_state": True}

    def update(self, layer, x, state):
        state = layer.self_attn.restart_positions(state)
        self.state = tree_map_only(torch.Tensor, torch.Tensor.detach, state)


class Memory:
    """Memories of all layers, each of which is a result of ``new_memory()``.

    A text is split into streams that are processed in parallel. Each batch of streams has its own memory,
    separately in training and for each evaluated split. A memory starts empty. It is discarded unless its
    last segment precedes the current one.
    """

    def __init__(self, layers: list[nn.Module], new_memory: Callable[[], InputMemory | StateMemory]):
        self.layers = layers
        self.new_memory = new_memory
        self.saved = {}
        """{(training, split, first stream, number of streams): (last segment, memory of each layer)}"""

    @contextmanager
    def attached(self, segment: Segment, streams: int, training: bool) -> Iterator[None]:
        """Attaches the memory to the layers, which update it while they process a segment, and saves it.

        ``streams`` is the number of streams in the batch.
        """
        if training:  # frees the memory of a finished evaluation, which may be large
            self.saved = {key: saved for key, saved in self.saved.items() if key[0]}
        key = (training, segment.split, segment.stream, streams)
        number, memories = self.saved.pop(key, (None, None))
        if number != segment.number - 1 or memories is None:
            memories = [self.new_memory() for _ in self.layers]
            if training and segment.number:
                logger.info("the memory starts empty at segment %d", segment.number)
        for layer, memory in zip(self.layers, memories, strict=True):
            layer.memory = memory
        try:
            yield
            self.saved[key] = segment.number, memories
        finally:
            for layer in self.layers:
                layer.memory = None


def build_memory(decoder: nn.Module, cfg, task) -> Memory | None:
    """Returns the memory that the flags select, or None, and sets up the decoder's attention for it.

    Raises a UserError if the model does not support the memory.
    """
    state = task.memory == "state"
    if not (state or task.memory_length):
        return None
    for layer in decoder.layers:
        attention = layer.self_attn
        check_memory(attention, cfg, task)
        attention.segment_length = task.tokens_per_sample
        attention.encoding.clamp_length = task.clamp_length
        if not state:
            attention.memory_length = task.memory_length
        if task.same_length:
            attention.window = task.memory_length
    return Memory(decoder.layers, StateMemory if state else partial(InputMemory, task.memory_length))


def check_memory(attention: SelfAttention, cfg, task) -> None:
    """Raises a UserError if a decoder with this attention and these flags does not support the memory."""
    positions = cfg.token_positions
    encoding = attention.encoding
    if cfg.encoding_window:
        raise UserError("--encoding-window does not support a memory: omit it, or pass --same-length")
    if cfg.randomized_positions:
        raise UserError("random positions differ between segments: omit --randomized-positions with a memory")
    if positions != "none" and not (positions == "sinusoidal" and cfg.no_token_positional_embeddings):
        raise UserError(
            f"{positions} token positions restart in each segment, so a memory does not support them: pass "
            "--token-positions none"
        )
    if encoding.uses_absolute_positions:
        raise UserError(
            f"{encoding.name} uses absolute positions, which a memory does not support: use another encoding"
        )
    if recomputes_activations(cfg):
        raise UserError("a memory supports no --checkpoint-activations and --offload-activations: omit them")
    if cfg.decoder_layerdrop:
        raise UserError(
            "--decoder-layerdrop is not supported with a memory, which dropped layers do not update: omit it"
        )
    if task.clamp_length and not encoding.uses_distance_table:
        supported = ", ".join(name for name, cls in ENCODINGS.items() if cls.uses_distance_table)
        raise UserError(
            f"--clamp-length is not supported by {encoding.name}, which does not look up distances: omit it, "
            f"or use softmax attention with one of {supported}"
        )
    if task.memory == "state":
        check_state(attention)
    if task.same_length and not isinstance(attention, SoftmaxAttention):
        raise UserError("--same-length requires softmax attention: omit it, or pass --arch softmax_lm_...")


def check_state(attention: SelfAttention) -> None:
    """Raises a UserError if attention has no state of constant size whose positions can be shifted."""
    if isinstance(attention, SoftmaxAttention):
        raise UserError("--memory state requires linear attention: pass --memory hidden")
    encoding = attention.encoding
    context = START
    zeros = torch.zeros(1, encoding.num_heads, 1, encoding.head_dim)
    if isinstance(encoding, InputsMixin):
        inputs = torch.zeros(1, encoding.left_context + 1, attention.embed_dim)
        context = START._replace(features=encoding.input_features(inputs))
    try:
        shift_keys(encoding, encoding(zeros, zeros, context)[1], 1)
        shift_values(encoding, encode_values(encoding, zeros), 1)
    except ValueError as error:
        raise UserError(f"{error}: pass --memory hidden") from None
