"""FLOPs and memory of a training step, from one layer of each kind that is run on the meta device.

On this device tensors have shapes but no numbers, so that a layer of any size takes milliseconds.
"""

import math
import weakref
from argparse import Namespace
from collections.abc import Callable
from dataclasses import astuple, dataclass
from contextlib import nullcontext
from functools import cache
from unittest.mock import patch

import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from fairseq_lrpe.experiments.estimation.corpora import Corpus, read_corpus
from fairseq_lrpe.experiments.estimation.models import BuiltModel, build, parse, without_compiler
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.ops.position_index import diagonal_position_index

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
aten = torch.ops.aten


def _fused_attention_backward_flop(grad, q, k, v, *args, out_val=None, **kwargs):
    # Without the scores, which the kernel computes again.
    return 2 * sdpa_flop_count(q.shape, k.shape, v.shape)


FLOPS = {
    **flop_registry,
    aten.baddbmm_: flop_registry[aten.baddbmm],
    aten._scaled_dot_product_efficient_attention_backward: _fused_attention_backward_flop,
}
"""{operator: function for its FLOPs}"""


@dataclass(frozen=True)
class Cost:
    """The cost of a forward and a backward pass.

    Args:
        flops: FLOPs of the matrix products.
        kept: bytes from the forward to the backward pass, including the output but not the input.
        peak: largest number of bytes at a time, without the parameters and their gradients.
    """

    flops: int
    kept: int
    peak: int


class CostMode(TorchDispatchMode):
    """Counts the FLOPs of operators and the bytes of the tensors that they create, while these exist."""

    def __init__(self):
        super().__init__()
        self.flops = self.current = self.peak = 0
        self.storages = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.native_dropout.default:
            out = torch.empty_like(args[0]), torch.empty_like(args[0], dtype=torch.bool)
        elif func is aten._local_scalar_dense.default:  # a number that is read
            return 0.0
        elif func is aten.nonzero.default:  # elements that are selected: all
            out = args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.long)
        else:
            out = func(*args, **(kwargs or {}))
        if count := FLOPS.get(func.overloadpacket):
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return out

    def ignore(self, *tensors: Tensor) -> None:
        """Excludes tensors that exist already."""
        self.storages |= {x.untyped_storage()._cdata for x in tensors}

    def _add(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.storages:
            self.storages.add(key)
            self.current += size
            self.peak = max(self.peak, self.current)
            weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key, size):
        self.storages.discard(key)
        self.current -= size


def fused_dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout as GPUs compute it, whose mask has one byte per element."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def fused_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None) -> Tensor:
    """``scaled_dot_product_attention`` as GPUs compute it, which does not keep the weights."""
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.size(-2))
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, dropout_p, is_causal)[0]


def measure(function: Callable[..., Tensor], module: nn.Module, *inputs: Tensor) -> Cost:
    """Returns the cost of ``function(*inputs)`` and its backward pass.

    Gradients of the parameters exist before, as in all but the first of the batches of an update.
    """
    for parameter in module.parameters():
        parameter.grad = torch.empty_like(parameter)
    mode = CostMode()
    existing = [*inputs, *module.buffers(), *module.parameters(), *(p.grad for p in module.parameters())]
    mode.ignore(*existing)
    fused = {"dropout": fused_dropout, "scaled_dot_product_attention": fused_attention}
    # autocast, which the models disable in places, does not exist on the meta device.
    without_autocast = patch.object(torch, "autocast", lambda *_, **__: nullcontext())
    with without_compiler(), patch.multiple(F, **fused), without_autocast, mode:
        out = function(*inputs)
        kept = mode.current
        out.backward(torch.empty_like(out))
    return Cost(mode.flops, kept, mode.peak)


@dataclass(frozen=True)
class Batch:
    """The shape of a batch on one GPU.

    Args:
        sequences: number of sequences.
        source: length of the encoder's input, 0 without an encoder.
        target: length of the decoder's input, 0 without a decoder.
        memory: number of positions before it that the decoder sees.
    """

    sequences: int
    source: int
    target: int
    memory: int = 0


def batches(built: BuiltModel, corpus: Corpus, size) -> tuple[Batch, Batch]:
    """Returns the batches of one GPU with sequences of mean length and with the longest ones.

    Args:
        size: the setting ``batch`` of the experiment.
    """
    model, task, settings = built.model, built.task, built.settings
    decoder_only = not hasattr(model, "encoder") and hasattr(model, "decoder")
    memory = getattr(task, "memory_length", 0)
    if hasattr(model, "side"):
        longest = (model.side**2, 0)
    elif hasattr(model, "encoder") and hasattr(model, "decoder"):
        longest = (settings.max_source_positions, settings.max_target_positions)
    else:
        length = getattr(task, "tokens_per_sample", None) or task.max_positions
        longest = (0, length) if decoder_only else (length, 0)
    mean = tuple(min(round(x or limit), limit) for x, limit in zip(corpus.lengths, longest, strict=True))
    if size.unit == "tokens":
        longest = mean if hasattr(model, "encoder") else longest
        return tuple(Batch(max(1, size.per_gpu // max(x)), *x, memory) for x in (mean, longest))
    sequences = size.per_gpu * (corpus.inputs if getattr(task, "pairs", "") == "apart" else 1)
    return tuple(Batch(sequences, *x, memory) for x in (mean, longest))


@cache
def training_cost(built: BuiltModel, batch: Batch, dtype: torch.dtype) -> Cost:
    """Returns the cost of the forward and backward pass of a batch."""
    model = built.model.to(dtype).train()
    kept, parts = 0, []
    for kind, length in ((TransformerEncoderLayerBase, batch.source), (TransformerDecoderLayerBase, batch.target)):
        if layers := [module for module in model.modules() if isinstance(module, kind)]:
            width = layers[0].embed_dim
            parts += [(layer_cost(layers[0], model, batch, dtype), len(layers))]
            # The embeddings after dropout, and the output of the last norm.
            kept += 2 * batch.sequences * length * width * dtype.itemsize
    if output := output_cost(built, batch, dtype):
        parts.append((output, 1))
    flops = sum(count * cost.flops for cost, count in parts)
    flops += 6 * batch.sequences * (batch.source or batch.target) * input_parameters(model)
    kept += sum(count * cost.kept for cost, count in parts)
    return Cost(flops, kept, kept + max(cost.peak - cost.kept for cost, _ in parts))


def layer_cost(layer: nn.Module, model: nn.Module, batch: Batch, dtype: torch.dtype) -> Cost:
    """Returns the cost of a layer."""

    def inputs(length):
        return torch.empty(length, batch.sequences, layer.embed_dim, dtype=dtype, device="meta", requires_grad=True)

    if isinstance(layer, TransformerEncoderLayerBase):
        if getattr(model, "summed", False):
            layer.self_attn.position_index = diagonal_position_index(model.side, model.side, "meta")
        return measure(lambda x: layer(x, None), layer, inputs(batch.source))
    mask = torch.empty(batch.target, batch.target, dtype=dtype, device="meta")
    if batch.memory:
        layer.memory = inputs(batch.memory).detach()

    def forward(x, *encoder_out):
        return layer(x, *encoder_out, self_attn_mask=mask)[0]

    lengths = (batch.target, batch.source) if layer.encoder_attn is not None else (batch.target,)
    return measure(forward, layer, *map(inputs, lengths))


def output_cost(built: BuiltModel, batch: Batch, dtype: torch.dtype) -> Cost | None:
    """Returns the cost of the logits and the loss; None for classifiers, whose logits are few."""
    model, rows = built.model, batch.sequences * (batch.target or batch.source)
    decoder = getattr(model, "decoder", None)

    def loss(logits):
        log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
        target = torch.empty(len(logits), dtype=torch.long, device="meta")
        if built.label_smoothing:
            return label_smoothed_nll_loss(log_probs, target, built.label_smoothing, ignore_index=1)[0]
        return F.nll_loss(log_probs, target, ignore_index=1, reduction="sum")

    def cost(rows, function, module, width):
        x = torch.empty(math.ceil(rows), width, dtype=dtype, device="meta", requires_grad=True)
        return measure(lambda x: loss(function(x)), module, x)

    if hasattr(built.task, "mask_prob"):
        head = model.encoder.lm_head
        return cost(built.task.mask_prob * rows, head, head, head.dense.in_features)
    if decoder is None:
        return None
    if decoder.adaptive_softmax is None:
        return cost(rows, decoder.output_projection, decoder.output_projection, decoder.output_projection.in_features)
    softmax, parts = decoder.adaptive_softmax, []
    parts.append(cost(rows, softmax.head, softmax.head, softmax.input_dim))
    for tail, first, last in zip(softmax.tail, softmax.cutoff, softmax.cutoff[1:], strict=False):
        parts.append(cost(rows * math.log(last / first) / math.log(last), tail, tail, softmax.input_dim))
    return Cost(*(sum(values) for values in zip(*map(astuple, parts), strict=True)))


def input_parameters(model: nn.Module) -> int:
    """Returns the number of parameters of the projection of each input before the layers."""
    inputs = [x for name, x in model.named_modules() if name.endswith(("patches", "embed_tokens"))]
    linear = [x for x in inputs[0].modules() if isinstance(x, nn.Linear)]
    return linear[0].weight.numel() if linear else 0


@dataclass(frozen=True)
class Estimate:
    """The estimate of a training.

    Args:
        parameters: number of parameters.
        work: {"tokens": number of tokens, "rows": number of sequences}.
        flops: FLOPs.
        memory: bytes on each GPU.
        checkpoint: bytes of a checkpoint.
        disk: bytes of all checkpoints that are kept.
    """

    parameters: int
    work: dict[str, float]
    flops: float
    memory: int
    checkpoint: int
    disk: int


def estimate_training(job: Job) -> Estimate:
    """Returns the estimate of a run; ValueError if its flags are invalid or its data is not known."""
    corpus, args, size = read_corpus(job.kind, job.cfg), parse(job), job.cfg.batch
    built, dtype, rows = build(args, corpus), DTYPES[job.launch.precision], corpus.rows
    mean, longest = batches(built, corpus, size)
    step, peak = (training_cost(built, batch, dtype) for batch in (mean, longest))
    updates = job.updates if rows is None else job.cfg.epochs * math.ceil(rows / size.total)
    steps = updates * size.total / size.per_gpu
    sequences = steps * mean.sequences
    checkpoint = built.parameters * (4 if dtype == torch.float32 else 2)
    checkpoint += 0 if args.no_save_optimizer_state else 8 * built.parameters
    return Estimate(
        parameters=built.parameters,
        work={"tokens": sequences * (mean.target or mean.source), "rows": sequences},
        flops=steps * step.flops,
        memory=training_memory(built.parameters, peak, dtype, job.launch.gpus),
        checkpoint=checkpoint,
        disk=checkpoint * checkpoints(args, updates),
    )


def training_memory(parameters: int, cost: Cost, dtype: torch.dtype, gpus: int) -> int:
    """Returns the bytes that a training needs on each GPU."""
    half = dtype != torch.float32
    states = parameters * (20 if half else 16)
    buckets = parameters * dtype.itemsize if gpus > 1 else 0
    return states + buckets + max(cost.peak, 4 * parameters if half else 0)


def checkpoints(args: Namespace, updates: int) -> int:
    """Returns the number of checkpoints that a training keeps, without those of epochs."""
    if args.no_save:
        return 0
    every, kept = args.save_interval_updates, args.keep_interval_updates
    written = updates // every if every > 0 else 0
    last_and_best = (not args.no_last_checkpoints) + (not args.disable_validation)
    return last_and_best + (written if kept < 0 else min(written, kept))
