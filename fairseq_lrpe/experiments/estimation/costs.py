"""FLOPs, memory and disk of a training, from its flags.

The layers of each part of a model (encoder, decoder) are equal, so one of each is measured on the meta device
(see ``meta``), and the logits and the loss likewise; the other costs are formulas.

FLOPs = 6 Σ N T + attention, where N are the parameters of a matrix product and T the tokens that pass it:
2 N T in the forward and 4 N T in the backward pass. Embeddings and norms have none. Masked language models
compute logits of the masked tokens only. Attention, per layer and sequence of L tokens, for H heads with keys
of width d and values of width e:

    softmax             6 H L² (d + e)                  causal attention, too: the masked half is counted
    linear              12 H L d e + 6 H L d            without the second term if it does not divide
    linear and causal   2 H L (C (4 d + 3 e) + 6 d e)   in chunks of C tokens, see ops.linear_attention

d is the width after encoding: twice the head dimension for LRPE's unitary core. Products of the encoding
itself are counted as well, and what attention to more than 1,024 tokens computes again in the backward pass.

Memory of a GPU, with P parameters and s bytes of a number (4 in fp32, 2 in fp16 and bf16):

    16 P                weights, gradients and Adam's two averages in fp32
    20 P                the same in half precision, with copies of weights and gradients in fp32
    s P                 gradients that several GPUs exchange
    Σ kept              what the layers keep for the backward pass, 2 s E per token, and the logits
    max(temporary)      the largest part of the backward pass: the gradient of logits and loss, or of a layer
    4 P                 if that is more: the update of Adam in half precision, without the previous two

Disk: a checkpoint has 2 P bytes in half precision and 4 P in fp32, and Adam's averages, 8 P.
"""

import math
from argparse import Namespace
from dataclasses import astuple, dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from omegaconf import DictConfig
from torch import nn

from fairseq_lrpe.experiments.estimation.corpora import Corpus, read_corpus
from fairseq_lrpe.experiments.estimation.meta import Cost, measure
from fairseq_lrpe.experiments.estimation.models import BuiltModel, build, parse
from fairseq_lrpe.experiments.execution.runner import Job

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Estimate:
    """The estimate of a training.

    Args:
        parameters: number of parameters.
        work: {"tokens": number of tokens, of the target if there is one, "rows": number of sequences}.
        flops: FLOPs.
        memory: bytes on each GPU.
        checkpoint: bytes of a checkpoint.
        disk: bytes of all checkpoints that are kept.
        note: what is assumed of the data.
    """

    parameters: int
    work: dict[str, float]
    flops: float
    memory: int
    checkpoint: int
    disk: int
    note: str


def estimate_training(job: Job) -> Estimate:
    """Returns the estimate of a run; ValueError if its flags are invalid or its data is not known."""
    if not job.kind.trains:
        raise ValueError("no estimate, because its runs train no model")
    corpus, args, size = read_corpus(job.kind, job.cfg), parse(job), job.cfg.batch
    built, dtype = build(args, corpus), DTYPES[job.launch.precision]
    mean, longest = batches(built, corpus, size)
    updates = job.updates if corpus.rows is None else job.cfg.epochs * math.ceil(corpus.rows / size.total)
    steps, parameters = updates * size.total / size.per_gpu, built.parameters(corpus.labels)
    sequences, gpus = steps * mean.sequences, job.launch.gpus * job.launch.nodes
    checkpoint = parameters * (dtype.itemsize + (0 if args.no_save_optimizer_state else 8))
    return Estimate(
        parameters=parameters,
        work={"tokens": sequences * (mean.target or mean.source), "rows": sequences},
        flops=steps * scaled_flops(built, mean, longest, dtype),
        memory=training_memory(parameters, training_cost(built, longest, dtype), dtype, gpus),
        checkpoint=checkpoint,
        disk=checkpoint * checkpoints(args, updates),
        note=corpus.note,
    )


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


def batches(built: BuiltModel, corpus: Corpus, size: DictConfig) -> tuple[Batch, Batch]:
    """Returns the batches of one GPU with sequences of mean length and with the longest ones.

    Args:
        size: the setting ``batch`` of the experiment.
    """
    model, task = built.model, built.task
    memory = getattr(task, "memory_length", 0)
    if hasattr(model, "side"):  # of a grid of patches
        longest = (model.side**2, 0)
    elif hasattr(model, "encoder") and hasattr(model, "decoder"):
        longest = (built.settings.max_source_positions, built.settings.max_target_positions)
    else:
        length = getattr(task, "tokens_per_sample", None) or task.max_positions
        longest = (length, 0) if hasattr(model, "encoder") else (0, length)
    mean = tuple(min(math.ceil(x or limit), limit) for x, limit in zip(corpus.lengths, longest, strict=True))
    if size.unit == "tokens":
        return (Batch(max(1, size.per_gpu // max(mean)), *mean, memory),) * 2
    sequences = size.per_gpu * (corpus.inputs if getattr(task, "pairs", "") == "apart" else 1)
    return Batch(sequences, *mean, memory), Batch(sequences, *longest, memory)


@cache
def training_cost(built: BuiltModel, batch: Batch, dtype: torch.dtype) -> Cost:
    """Returns the cost of the forward and backward pass of a batch."""
    model = built.model.to(dtype).train()
    kinds = (TransformerEncoderLayerBase, batch.source), (TransformerDecoderLayerBase, batch.target)
    parts = [input_cost(model, batch, dtype), output_cost(built, batch, dtype)]
    for kind, length in kinds:
        if layers := [module for module in model.modules() if isinstance(module, kind)]:
            layer = layer_cost(layers[0], model, batch, dtype)
            parts += len(layers) * [layer]
            if hasattr(built.task, "mask_prob") and getattr(built.settings, "mask_decoder", False):
                # The last layer is applied twice more, once without a backward pass.
                parts += [layer, Cost(layer.flops // 3)]
            # The embeddings after dropout, and the output of the last norm.
            parts.append(Cost(0, *2 * [2 * batch.sequences * length * layers[0].embed_dim * dtype.itemsize]))
    flops, kept = (sum(getattr(part, name) for part in parts) for name in ("flops", "kept"))
    return Cost(flops, kept, kept + max(part.peak - part.kept for part in parts))


def input_cost(model: nn.Module, batch: Batch, dtype: torch.dtype) -> Cost:
    """Returns the cost of the projection before the layers, if there is one."""
    inputs = next(x for name, x in model.named_modules() if name.endswith(("patches", "embed_tokens")))
    projection = next((x for x in inputs.modules() if isinstance(x, nn.Linear)), None)
    if projection is None:
        return Cost()
    rows, is_image = batch.sequences * (batch.source or batch.target), projection is inputs
    kept = rows * projection.in_features * dtype.itemsize
    return Cost((4 if is_image else 6) * rows * projection.weight.numel(), kept, kept)


def layer_cost(layer: nn.Module, model: nn.Module, batch: Batch, dtype: torch.dtype) -> Cost:
    """Returns the cost of a layer."""

    def states(length):
        shape = length, batch.sequences, layer.embed_dim
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

    if isinstance(layer, TransformerEncoderLayerBase):
        if hasattr(model, "position_index"):
            layer.self_attn.position_index = model.position_index("meta")
        return measure(lambda x: layer(x, None), layer, states(batch.source))
    if batch.memory:
        layer.memory = states(batch.memory).detach()
    mask = torch.empty(batch.target, batch.target, dtype=dtype, device="meta")  # of fairseq's own attention
    lengths = (batch.target,) if layer.encoder_attn is None else (batch.target, batch.source)
    return measure(lambda *x: layer(*x, self_attn_mask=mask)[0], layer, *map(states, lengths))


def output_cost(built: BuiltModel, batch: Batch, dtype: torch.dtype) -> Cost:
    """Returns the cost of the logits and the loss; those of classifiers are not counted.

    The rows of an adaptive softmax's clusters follow Zipf's law: cluster a..b of V types has ln(b/a) / ln(V).
    """
    model, rows = built.model, batch.sequences * (batch.target or batch.source)
    decoder = getattr(model, "decoder", None)

    def cost(module, rows, width):
        def loss(x):
            log_probs = F.log_softmax(module(x), dim=-1, dtype=torch.float32)
            target = torch.empty(len(x), dtype=torch.long, device="meta")
            if built.label_smoothing:
                return label_smoothed_nll_loss(log_probs, target, built.label_smoothing, ignore_index=1)[0]
            return F.nll_loss(log_probs, target, ignore_index=1, reduction="sum")

        x = torch.empty(math.ceil(rows), width, dtype=dtype, device="meta", requires_grad=True)
        return measure(loss, module, x)

    if hasattr(built.task, "mask_prob"):
        head = model.encoder.lm_head
        return cost(head, built.task.mask_prob * rows, head.dense.in_features)
    if decoder is None:
        return Cost()
    if decoder.adaptive_softmax is None:
        return cost(decoder.output_projection, rows, decoder.output_projection.in_features)
    softmax = decoder.adaptive_softmax
    parts = [cost(softmax.head, rows, softmax.input_dim)]
    for tail, first, last in zip(softmax.tail, softmax.cutoff, softmax.cutoff[1:], strict=False):
        share = math.log(last / first) / math.log(softmax.vocab_size)
        parts.append(cost(tail, share * rows, softmax.input_dim))
    return Cost(*(sum(values) for values in zip(*map(astuple, parts), strict=True)))


def scaled_flops(built: BuiltModel, mean: Batch, longest: Batch, dtype: torch.dtype) -> float:
    """Returns the FLOPs of a batch of mean length: a x + b x² if it is x times as long as the longest one."""
    whole = training_cost(built, longest, dtype).flops
    if mean == longest:
        return whole
    half = replace(longest, source=longest.source // 2, target=longest.target // 2)
    x, y = ((batch.source + batch.target) / (longest.source + longest.target) for batch in (half, mean))
    b = (training_cost(built, half, dtype).flops / x - whole) / (x - 1)
    return y * (whole - b) + y**2 * b


def training_memory(parameters: int, cost: Cost, dtype: torch.dtype, processes: int) -> int:
    """Returns the bytes that a training needs on each GPU."""
    is_half = dtype != torch.float32
    states = parameters * (20 if is_half else 16)
    exchanged = parameters * dtype.itemsize if processes > 1 else 0
    return states + exchanged + max(cost.peak, 4 * parameters if is_half else 0)


def checkpoints(args: Namespace, updates: int) -> int:
    """Returns the number of checkpoints that a training keeps, without those of epochs."""
    if args.no_save:
        return 0
    every, kept = args.save_interval_updates, args.keep_interval_updates
    written = updates // every if every > 0 else 0
    last_and_best = (not args.no_last_checkpoints) + (not args.disable_validation)
    return last_and_best + (written if kept < 0 else min(written, kept))
