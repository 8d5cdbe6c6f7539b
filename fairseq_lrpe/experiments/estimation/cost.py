"""Parameters, FLOPs, calls and memory of a training, measured with its model on torch's meta device.

The model is that of the run's fairseq-train command, with dictionaries of which only the size is known.
Inputs have the greatest length that the model accepts, with two exceptions: if batches are given in tokens
(translation), sentences have ``SENTENCE`` tokens, and the FLOPs of fine-tuning are those of inputs of the
task's mean length (``GLUE``).
"""

import math
import warnings
from argparse import Namespace
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from fairseq import models, optim, options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import FairseqOptimizer
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.data.glue_tasks import get_task
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.estimation.corpora import GLUE, Corpus, read_corpus
from fairseq_lrpe.experiments.estimation.launches import Launches, update_seconds
from fairseq_lrpe.experiments.estimation.meta_device import (
    MetaFP16Optimizer,
    aten,
    expect_words,
    meta_device,
)
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.launch import train_command, update_freq
from fairseq_lrpe.models.register import unchecked_arguments
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask, Segment
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PLUGIN

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SENTENCE = 30  # assumed tokens of a sentence of a translation
MASKED = 0.15  # share of tokens that a masked language model predicts
WITH_MASK = ("masked_lm", "sentence_prediction")  # fairseq's tasks that add <mask> to the dictionary
HEAD = "sentence_classification_head"  # fairseq's name of the head of a fine-tuning


class Estimate(NamedTuple):
    parameters: int
    tokens: float  # of the target if there is one
    flops: float  # of the matrix products of all forward and backward passes
    memory: int  # bytes on each GPU
    calls: int  # calls of operations on each GPU in an update
    host: float  # seconds in which the host of each GPU starts the calls of all updates


def estimate_training(job: Job) -> Estimate:
    """Returns the cost of a training; raises UserError if it cannot be estimated."""
    if not job.kind.trains:
        raise UserError("no estimate, because the runs of this experiment train no model")
    batch = job.cfg.batch
    dtype = DTYPES[job.precision]
    is_glue = job.cfg.get("task") in GLUE
    built = build_glue(job) if is_glue else build(tuple(train_command(job)), read_corpus(job.kind, job.cfg))
    size = batch.per_gpu
    lengths = built.longest()
    if batch.unit == "tokens":
        size = batch.per_gpu // SENTENCE
        lengths = (SENTENCE, SENTENCE)
    measured = measure(built, size, lengths, dtype)
    saved = measured.saved
    if is_glue:
        rows, mean_length = GLUE[job.cfg.task]
        updates = job.cfg.epochs * math.ceil(rows / batch.total)
        lengths = (mean_length, 0)
        measured = measure(built, size, lengths, dtype)
    else:
        updates = job.updates
    steps = updates * batch.total / batch.per_gpu
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    # Weights, gradients and Adam's two averages; in half precision with copies of the first two in float32.
    states = parameters * (16 if dtype == torch.float32 else 20)
    texts = 1 + getattr(built.task, "apart", False)
    passes = measured.passes.calls
    update = measured.update.calls
    batches = update_freq(batch, job.gpus, job.nodes)
    return Estimate(
        parameters=parameters,
        tokens=steps * size * texts * (lengths[1] or lengths[0]),
        flops=steps * measured.flops,
        memory=states + saved,
        calls=passes * batches + update,
        host=updates * update_seconds(passes, update, batches),
    )


def build_glue(job: Job) -> "BuiltModel":
    """Returns the model of a fine-tuning, which is the pretrained model with a head for classification."""
    trained = job
    start = job.experiment.starts_from(job.run)
    if isinstance(start, Run):
        trained = replace(job, experiment=job.experiment.other(start.experiment), run=start)
    labels = len(get_task(job.cfg.task).labels) or 1
    corpus = read_corpus(trained.kind, trained.cfg)._replace(labels=labels)
    return build(tuple(train_command(trained)), corpus)


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """A model on the meta device, its task, and the settings of its training."""

    model: nn.Module
    task: object
    settings: DictConfig

    @property
    def cfg(self) -> Namespace:
        """The settings of the task."""
        return self.settings.task

    def longest(self) -> tuple[int, int]:
        """Returns the greatest lengths of source and target that the model accepts, or 0 if it lacks one."""
        if hasattr(self.model, "side"):  # of a grid of patches
            return self.model.side**2, 0
        if hasattr(self.model, "encoder") and hasattr(self.model, "decoder"):
            return self.model.max_positions()
        length = getattr(self.cfg, "tokens_per_sample", None) or self.cfg.max_positions
        return (length, 0) if hasattr(self.model, "encoder") else (0, length)

    def segments(self) -> list[dict]:
        """Returns the model's arguments for segments that fill a memory, if any, and for the next one."""
        length = getattr(self.cfg, "memory_length", 0)
        count = math.ceil(length / self.cfg.tokens_per_sample) if length else 0
        return [{"segment": Segment("train", 0, i)} for i in range(count + 1)] if count else [{}]


@cache
def build(words: tuple[str, ...], corpus: Corpus) -> BuiltModel:
    """Returns the model of a fairseq-train command (``words``); raises UserError if its flags are invalid."""
    flags = [str(PLUGIN) if word == PLUGIN.name else word for word in words[1:]]
    with unchecked_arguments():  # build_model checks the flags; data and GPUs may be missing here
        args = options.parse_args_and_arch(options.get_training_parser(), flags)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hydra, about fairseq's own calls
        cfg = convert_namespace_to_omegaconf(args)
    task = make_task(args.task, cfg.task, corpus)
    with meta_device():
        model = models.build_model(cfg.model, task).to("meta")
        labels = corpus.labels or getattr(args, "num_classes", 0)  # of sentence_prediction
        if args.task in WITH_MASK and labels:
            model.register_classification_head(HEAD, num_classes=labels)
    return BuiltModel(model, task, cfg)


def make_task(name: str, cfg: Namespace, corpus: Corpus):
    """Returns a task, or an object with the attributes of a task that models read, without data."""
    if name == "synthetic_lm":
        return tasks.TASK_REGISTRY[name](cfg)
    dictionaries = [Dictionary() for _ in corpus.types] or [None]
    for dictionary, size in zip(dictionaries, corpus.types, strict=False):
        dictionary.symbols += [""] * (size + (name in WITH_MASK) - len(dictionary))
    if name == "memory_lm":
        return MemoryLMTask(cfg, *dictionaries)
    is_apart = corpus.inputs > 1 and cfg.pairs == "apart"
    return SimpleNamespace(
        source_dictionary=dictionaries[0],
        target_dictionary=dictionaries[-1],
        max_positions=lambda: getattr(cfg, "max_positions", None) or cfg.tokens_per_sample,
        cfg=cfg,
        about={"pixels": {"mean": 0.0, "std": 1.0}} if corpus.pixels else {},
        labels=range(corpus.labels),
        joined=corpus.inputs > 1 and not is_apart,
        apart=is_apart,
    )


class Measured(NamedTuple):
    """The cost of the forward and backward pass of a batch, and of the optimizer's update."""

    flops: int
    saved: int  # bytes of saved tensors and of the largest gradients
    passes: Launches  # of the forward and backward pass
    update: Launches  # of the optimizer


@cache
def measure(built: BuiltModel, size: int, lengths: tuple[int, int], dtype: torch.dtype) -> Measured:
    """Returns the cost of an update with a batch of ``size`` inputs of ``lengths`` (source, target).

    FLOPs and memory are measured in a first update, calls in a second one, because the first update also
    computes constants and the optimizer's state.
    """
    model = built.model.to(dtype).train()
    expect_words(model)
    *previous, last = built.segments()
    saved = {}  # {storage: bytes}
    flops = flop_counter()
    passes = Launches()
    update = Launches()

    def keep(x):
        saved[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return x

    with meta_device():
        optimizer = build_optimizer(built, dtype)
        with torch.no_grad():  # the hidden states of these segments are the memory of a language model
            for segment in previous:
                model(torch.empty(size, lengths[1], dtype=torch.long), **segment)
        with flops:
            with saved_tensors_hooks(keep, lambda x: x):
                loss = compute_loss(built, size, *lengths, dtype, last)
            optimizer.backward(loss)
        step(optimizer, built)
        with passes:
            optimizer.backward(compute_loss(built, size, *lengths, dtype, last))
        with update:
            step(optimizer, built)
    model.zero_grad()
    for parameter in model.parameters():
        saved.pop(parameter.untyped_storage()._cdata, None)
    # The gradients of the largest tensor, such as the logits, exist beside all that is saved.
    memory = sum(saved.values()) + 2 * max(saved.values())
    return Measured(flops.get_total_flops(), memory, passes, update)


def step(optimizer: FairseqOptimizer, built: BuiltModel) -> None:
    """Performs an update like fairseq's trainer: scales and clips the gradients, and steps the optimizer."""
    optimizer.multiply_grads(0.5)
    optimizer.clip_grad_norm(built.settings.optimization.clip_norm)
    optimizer.step()
    optimizer.zero_grad()


def build_optimizer(built: BuiltModel, dtype: torch.dtype) -> FairseqOptimizer:
    """Returns the optimizer that fairseq's trainer builds."""
    parameters = [parameter for parameter in built.model.parameters() if parameter.requires_grad]
    if dtype == torch.float32:
        return optim.build_optimizer(built.settings.optimizer, parameters)
    return MetaFP16Optimizer.build_optimizer(built.settings, parameters)


def flop_counter() -> FlopCounterMode:
    counter = FlopCounterMode(display=False)
    counter.flop_registry[aten.baddbmm_] = counter.flop_registry[aten.baddbmm]
    return counter


def compute_loss(
    built: BuiltModel, size: int, source: int, target: int, dtype: torch.dtype, segment: dict
) -> Tensor:
    """Returns the loss of a batch of ``size`` inputs with ``source`` and ``target`` tokens each."""
    model = built.model
    tokens = torch.empty(size, source or target, dtype=torch.long)
    if hasattr(model, "side"):
        images = torch.empty(size, 3, built.cfg.image_size, built.cfg.image_size, dtype=dtype)
        output = model(images)
    elif hasattr(model, "pooled"):
        output = model(*(tokens, None) * (1 + built.task.apart))
    elif HEAD in getattr(model, "classification_heads", {}):
        output = model(tokens, classification_head_name=HEAD)
    elif hasattr(model, "classification_heads"):
        features, extra = model(tokens, features_only=True, return_all_hiddens=True)
        if model.encoder.positions is not None:
            features = model.encoder.decode_masks(tokens, extra["inner_states"][-2])
        output = [model.encoder.lm_head(features.flatten(0, 1)[: math.ceil(MASKED * size * source)])]
    elif hasattr(model, "encoder"):
        output = model(tokens, tokens.new_empty(size), tokens.new_empty(size, target))
    else:
        output = model(tokens, **segment)
        if model.decoder.adaptive_softmax is not None:
            logits, _ = model.decoder.adaptive_softmax(output[0], tokens)
            return sum(_nll(F.log_softmax(part, dim=-1, dtype=torch.float32)) for part in logits)
    return _nll(model.get_normalized_probs(output, log_probs=True))


def _nll(log_probs):
    log_probs = log_probs.flatten(0, -2)
    return F.nll_loss(log_probs, torch.empty(len(log_probs), dtype=torch.long))
