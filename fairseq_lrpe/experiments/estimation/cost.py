"""Parameters, FLOPs and memory of a training, measured with its model on torch's meta device.

On this device, tensors have shapes but no numbers. The model is that of the run's fairseq-train command, with
dictionaries of which only the size is known. Inputs have the greatest length that the model accepts, except
those of translation, and those from which the FLOPs of fine-tuning are computed.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.fx.experimental._config
import torch.nn.functional as F
from fairseq import models, options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import AdaptiveInput, AdaptiveSoftmax
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.data.glue_tasks import get_task
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution.launch import train_command
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.ops import float64
from fairseq_lrpe.tasks.classification import is_joined
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask, Segment
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PLUGIN, PREPARE, display_path

aten = torch.ops.aten
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SENTENCE = 30  # assumed tokens of a sentence of a translation
MASKED = 0.15  # share of tokens that a masked language model predicts
WITH_MASK = ("masked_lm", "sentence_prediction")  # fairseq's tasks that add <mask> to the dictionary
HEAD = "sentence_classification_head"  # fairseq's name of the head of a fine-tuning


class Corpus(NamedTuple):
    """Properties of a run's data from which its model is built."""

    types: tuple[int, ...] = ()  # sizes of the dictionaries, without <mask>
    labels: int = 0
    inputs: int = 1  # texts per row
    pixels: bool = False  # whether tokens are pixels


CORPORA = {
    "wikitext103": Corpus((267_744,)),
    "wmt14_en_de": Corpus((40_480, 42_720)),
    "squad": Corpus((28_996, 28_996)),  # vocab.txt of bert-base-cased
    "cmrc2018": Corpus((21_128, 21_128)),  # vocab.txt of hfl/chinese-roberta-wwm-ext
    # GPT-2's 50,257 types, 3 that fill them up, and fairseq's four.
    **dict.fromkeys(("wikitext103_bpe", "books", "wikibook", "glue"), Corpus((50_264,))),
    "imagenet": Corpus(labels=1000),
    "listops": Corpus((19,), 10),  # ten digits, four operators, a bracket, and fairseq's four types
    "lra_text": Corpus((260,), 2),  # 256 values of a byte or a pixel, and fairseq's four types
    "lra_retrieval": Corpus((260,), 2, inputs=2),
    "lra_image": Corpus((260,), 10, pixels=True),
    "pathfinder": Corpus((260,), 2, pixels=True),
}
"""The papers' corpora, for estimates before they are prepared."""

GLUE = {
    "MNLI": (392_702, 39),
    "QNLI": (104_743, 51),
    "QQP": (363_846, 31),
    "RTE": (2_490, 70),
    "SST-2": (67_349, 15),
    "MRPC": (3_668, 53),
    "CoLA": (8_551, 11),
    "STS-B": (5_749, 28),
    "WNLI": (635, 37),
}
"""{task: (rows of the training set as published, mean tokens in GPT-2's BPE with separators)}"""


class Estimate(NamedTuple):
    parameters: int
    tokens: float  # of the target if there is one
    flops: float  # of the matrix products of all forward and backward passes
    memory: int  # bytes on each GPU


def estimate_training(job: Job) -> Estimate:
    """Returns the cost of a training, or raises a UserError that says why it cannot be estimated."""
    if not job.kind.trains:
        raise UserError("no estimate, because its runs train no model")
    batch, dtype, trained = job.cfg.batch, DTYPES[job.precision], job
    is_glue, initial = job.kind.task == "sentence_prediction", job.experiment.starts_from(job.run)
    if is_glue and isinstance(initial, Run):  # the model is that of the pretraining, with a head
        other = job.experiment.other(initial.experiment)
        trained = replace(job, experiment=other, run=initial)
    corpus = read_corpus(trained.kind, trained.cfg)
    if is_glue:
        corpus = corpus._replace(labels=len(get_task(job.cfg.task).labels) or 1)
    built = build(tuple(train_command(trained)), corpus)
    lengths = longest = built.longest()
    size = batch.per_gpu
    if batch.unit == "tokens":
        lengths = longest = SENTENCE, SENTENCE
        size = batch.per_gpu // SENTENCE
    if is_glue:
        rows, length = GLUE[job.cfg.task]
        updates, lengths = job.cfg.epochs * math.ceil(rows / batch.total), (length, 0)
    else:
        updates = job.updates
    steps = updates * batch.total / batch.per_gpu
    flops, _ = measure(built, size, lengths, dtype)
    _, saved = measure(built, size, longest, dtype)
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    # Weights, gradients and Adam's two averages; in half precision with copies of the first two in float32.
    states = parameters * (16 if dtype == torch.float32 else 20)
    tokens = steps * size * built.texts * (lengths[1] or lengths[0])
    return Estimate(parameters, tokens, steps * flops, states + saved)


def read_corpus(kind: Kind, cfg: DictConfig) -> Corpus:
    """Returns the properties of prepared data, or those in ``CORPORA``; raises a UserError without either."""
    if not (folders := kind.folders(cfg)):
        return Corpus()
    folder = folders[0]
    about = layout.read_metadata(folder) if (folder / layout.METADATA).is_file() else {}
    if about.get("images"):
        return Corpus(labels=len(about["labels"]))
    names = {
        "translation": [f"dict.{cfg.train.get(side)}.txt" for side in ("source_lang", "target_lang")],
        "question_generation": ["dict.source.txt", "dict.question.txt"],
        "sentence_prediction": ["input0/dict.txt"],
    }
    files = [folder / name for name in names.get(kind.task, ["dict.txt"])]
    if all(path.is_file() for path in files):
        types, labels = tuple(map(layout.vocabulary_size, files)), len(about.get("labels", ()))
        return Corpus(types, labels, about.get("inputs", 1), bool(about.get("pixels")))
    name = cfg.data.removeprefix("data/").partition("/")[0]
    if name not in CORPORA:
        command = prepare_command(display_path(folder)) or PREPARE
        raise UserError(f"the vocabulary is not known before the data is prepared: run `{command}`")
    return CORPORA[name]


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """A model on the meta device, the settings of its task and of the model, and properties of its data."""

    model: nn.Module
    task: Namespace
    settings: Namespace
    corpus: Corpus

    @property
    def texts(self) -> int:
        """The number of sequences per input, 2 for pairs of texts that are encoded separately."""
        return 1 + (self.corpus.inputs > 1 and getattr(self.task, "pairs", "") == "apart")

    @property
    def previous_segments(self) -> int:
        """The number of segments that fill the model's memory, 0 without a memory."""
        length = getattr(self.task, "memory_length", 0)
        return math.ceil(length / self.task.tokens_per_sample) if length else 0

    def longest(self) -> tuple[int, int]:
        """Returns the greatest lengths of source and target; that of a missing one is 0."""
        if hasattr(self.model, "side"):  # of a grid of patches
            return self.model.side**2, 0
        if hasattr(self.model, "encoder") and hasattr(self.model, "decoder"):
            return self.settings.max_source_positions, self.settings.max_target_positions
        length = getattr(self.task, "tokens_per_sample", None) or self.task.max_positions
        return (length, 0) if hasattr(self.model, "encoder") else (0, length)


@cache
def build(words: tuple[str, ...], corpus: Corpus) -> BuiltModel:
    """Builds the model of a fairseq-train command; raises a UserError if the flags are invalid."""
    words = [str(PLUGIN) if word == PLUGIN.name else word for word in words[1:]]
    # After parsing, our architectures check the flags, which build_model does as well, and the data.
    unchecked = dict.fromkeys(models.MODEL_DATACLASS_REGISTRY, lambda args: None)
    with patch.dict(models.ARCH_CONFIG_REGISTRY, unchecked):
        args = options.parse_args_and_arch(options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    try:
        # fairseq initializes some parameters on the CPU.
        with torch.device("meta"), patch.object(Tensor, "cpu", lambda x: x), patch_backends():
            model = models.build_model(cfg.model, make_task(args.task, cfg.task, corpus)).to("meta")
            if args.task in WITH_MASK and corpus.labels:
                model.register_classification_head(HEAD, num_classes=corpus.labels)
    except SystemExit as error:
        raise UserError(str(error.code).removeprefix("fairseq_lrpe: ")) from None
    return BuiltModel(model, cfg.task, cfg.model, corpus)


def make_task(name: str, cfg: Namespace, corpus: Corpus):
    """Returns a task, or an object with the attributes of a task that models read, without data."""
    if name == "synthetic_lm":
        return tasks.TASK_REGISTRY[name](cfg)
    dictionaries = [Dictionary() for _ in corpus.types] or [None]
    for dictionary, size in zip(dictionaries, corpus.types, strict=False):
        dictionary.symbols += [""] * (size + (name in WITH_MASK) - len(dictionary))
    if name == "memory_lm":
        return MemoryLMTask(cfg, *dictionaries)
    about = {"inputs": corpus.inputs} | ({"pixels": {"mean": 0.0, "std": 1.0}} if corpus.pixels else {})
    joined = is_joined(about, getattr(cfg, "pairs", ""))
    return SimpleNamespace(
        source_dictionary=dictionaries[0],
        target_dictionary=dictionaries[-1],
        max_positions=lambda: getattr(cfg, "max_positions", None) or cfg.tokens_per_sample,
        cfg=cfg,
        about=about,
        labels=range(corpus.labels),
        joined=joined,
        apart=corpus.inputs > 1 and not joined,
    )


@cache
def measure(built: BuiltModel, size: int, lengths: tuple[int, int], dtype: torch.dtype) -> tuple[int, int]:
    """Returns (FLOPs, bytes of saved tensors and the largest gradients) of the passes of ``size`` inputs."""
    model = built.model.to(dtype).train()
    counter = FlopCounterMode(display=False, custom_mapping={aten.baddbmm_: _baddbmm_flops})
    with patch_backends(), MetaNumbers():
        with torch.no_grad():  # the hidden states of these segments are the memory of a language model
            for number in range(built.previous_segments):
                model(_empty(size, lengths[1]), segment=Segment("train", 0, number))
        with counter:
            with saved_storages(model) as saved:
                loss = compute_loss(built, size, *lengths, dtype)
            # The gradients of the largest tensor, such as the logits, exist beside all that is saved.
            kept = sum(saved.values()) + 2 * max(saved.values())
            loss.backward()
    model.zero_grad()
    return counter.get_total_flops(), kept


@contextmanager
def saved_storages(model: nn.Module) -> Iterator[dict[int, int]]:
    """Yields {storage: bytes} of what autograd saves in this context, except parameters."""
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved = {}

    def keep(x):
        storage = x.untyped_storage()
        if storage._cdata not in parameters:
            saved[storage._cdata] = storage.nbytes()
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        yield saved


def _empty(*shape, dtype=torch.long):
    return torch.empty(shape, dtype=dtype, device="meta")


def compute_loss(built: BuiltModel, size: int, source: int, target: int, dtype: torch.dtype) -> Tensor:
    """Returns the loss of a batch of ``size`` inputs with these lengths."""
    model, tokens = built.model, _empty(size, source or target)
    if hasattr(model, "side"):
        logits = [model(_empty(size, 3, built.task.image_size, built.task.image_size, dtype=dtype))]
    elif hasattr(model, "pooled"):
        logits = [model(*(tokens, None) * built.texts)]
    elif hasattr(model, "classification_heads") and built.corpus.labels:
        logits = [model(tokens, classification_head_name=HEAD)[0]]
    elif hasattr(model, "classification_heads"):
        features = model(tokens, features_only=True)[0].flatten(0, 1)
        logits = [model.encoder.lm_head(features[: math.ceil(MASKED * size * source)])]
    elif hasattr(model, "encoder"):
        output = model(tokens, _empty(size), _empty(size, target))
        return _nll(model.get_normalized_probs(output, log_probs=True))
    else:
        number = built.previous_segments
        logits = [model(tokens, **({"segment": Segment("train", 0, number)} if number else {}))[0]]
        if model.decoder.adaptive_softmax is not None:
            logits, _ = model.decoder.adaptive_softmax(logits[0], tokens)
    return sum(_nll(F.log_softmax(of, dim=-1, dtype=torch.float32)) for of in logits)


def _nll(log_probs):
    log_probs = log_probs.flatten(0, -2)
    return F.nll_loss(log_probs, _empty(len(log_probs)))


class MetaNumbers(TorchDispatchMode):
    """Returns 0 for every number that is read from a tensor on the meta device, which has no values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return torch.zeros((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))


def _baddbmm_flops(shape, a, b, **_):
    return 2 * math.prod(a) * b[-1]


def _dropout(x, p=0.5, training=True, inplace=False):
    return x * torch.empty_like(x, dtype=torch.bool) if training and p else x


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.size(-2))
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, dropout_p, is_causal)[0]


def _rows(cutoff, tokens):
    """Returns one tensor of tokens for each cluster of an adaptive softmax but the first.

    Their sizes follow Zipf's law: the words a .. b of V have a share of ln(b/a) / ln(V) of the tokens.
    """
    shares = (math.log(last / first) / math.log(cutoff[-1]) for first, last in pairwise(cutoff))
    return [tokens.new_empty(math.ceil(share * tokens.numel())) for share in shares]


def _adapt_target(softmax, target):
    rows = _rows(softmax.cutoff, target)
    return [target, *rows], rows


def _adaptive_input(module, tokens):
    rows = _rows(module.cutoff, tokens)
    first = tokens.new_empty(tokens.numel() - sum(map(len, rows)))
    embedded = [embed(x) for embed, x in zip(module.embeddings, [first, *rows], strict=True)]
    return torch.cat(embedded).view(*tokens.shape, -1)


@contextmanager
def patch_backends():
    """On the meta device, replaces operators by those of GPUs or ones with shapes that need no values."""
    with (
        patch.multiple(F, dropout=_dropout, scaled_dot_product_attention=_attention),
        patch.object(AdaptiveSoftmax, "adapt_target", _adapt_target),
        patch.object(AdaptiveInput, "forward", _adaptive_input),
        patch.object(float64, "FLOAT64_DEVICES", (*float64.FLOAT64_DEVICES, "meta")),
        # Masks select all elements, because they have no values.
        patch.object(torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", True),
    ):
        yield
