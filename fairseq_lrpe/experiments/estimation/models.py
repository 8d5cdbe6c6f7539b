"""Builds the model that fairseq-train would build, without memory for its parameters and without its data.

The flags are those of the run's command, parsed by fairseq. The model is built on torch's meta device, with
dictionaries that only have a size.
"""

import logging
from argparse import Namespace
from contextlib import redirect_stderr
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from io import StringIO
from types import SimpleNamespace
from unittest.mock import patch

from fairseq import models, options, tasks
from fairseq.data import Dictionary
from omegaconf import OmegaConf
from torch import nn

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.experiments.estimation.corpora import Corpus
from fairseq_lrpe.experiments.estimation.meta import building
from fairseq_lrpe.experiments.execution.launch import train_command, update_freq
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.tasks.classification import is_joined
from fairseq_lrpe.tasks.memory_lm import MemoryLMTask
from fairseq_lrpe.utils.files import PLUGIN

HEAD = "sentence_classification_head"
"""fairseq's name of the head of a fine-tuning."""
WITH_MASK = ("masked_lm", "sentence_prediction")
"""fairseq's tasks that add <mask> to the dictionary."""
OF_THE_RUN = ("--seed", "--save-dir", "--finetune-from-model")
"""Flags that differ between runs with the same model."""


class SizedDictionary(Dictionary):
    """A dictionary of which only the size and the special types are known."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def __len__(self):
        return self.size

    def __eq__(self, other):
        return len(self) == len(other)


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """A model on the meta device.

    Args:
        task: the settings of its task.
        settings: the settings of the model.
        label_smoothing: the label smoothing of the loss.
    """

    model: nn.Module
    task: Namespace
    settings: Namespace
    label_smoothing: float

    @cache  # noqa: B019  (models are kept anyway)
    def parameters(self, labels: int) -> int:
        """Returns the number of parameters, with the head that fairseq adds to a model for fine-tuning."""
        has_head = hasattr(self.task, "classification_head_name")
        if has_head:
            with building():
                self.model.register_classification_head(HEAD, num_classes=labels)
        count = sum(parameter.numel() for parameter in self.model.parameters())
        if has_head:
            del self.model.classification_heads[HEAD]
        return count


def parse(job: Job) -> Namespace:
    """Returns the flags of a run's fairseq-train command, as parsed by fairseq.

    Those of a fine-tuning are the flags of the run that it starts from, whose checkpoint need not exist, and
    its own.
    """
    initial = job.experiment.starts_from(job.run)
    if not isinstance(initial, Run):
        words = train_command(job)
        drop = {i + offset for i, word in enumerate(words) if word in OF_THE_RUN for offset in (0, 1)}
        return parse_command(tuple(word for i, word in enumerate(words) if i not in drop))
    update_freq(job.cfg.batch, job.launch.gpus, job.launch.nodes)
    key = initial, job.launch, tuple(job.more), id(job.experiment)
    if key not in _initial:
        other = job.experiment.other(initial.experiment)
        _initial[key] = vars(parse(Job(other, initial, job.results, job.launch, job.more)))
    args = _initial[key]
    own = {**job.cfg.train, **job.cfg.by_method.get(job.run.method, {}), "task": job.kind.task}
    own |= {"save_interval_updates": own.get("save_interval_updates", 0)}
    return Namespace(**{**args, **{name: value for name, value in own.items() if value is not None}})


_initial: dict[tuple, dict] = {}
"""The flags of the runs that fine-tunings start from."""


@cache
def parse_command(command: tuple[str, ...]) -> Namespace:
    """Returns fairseq's parsed flags of a fairseq-train command; ValueError for an invalid flag."""
    logging.getLogger("fairseq").setLevel(logging.ERROR)
    words = [str(PLUGIN) if word == PLUGIN.name else word for word in command[1:]]
    output = StringIO()
    # After parsing, our architectures check the flags, which build_model does as well, and the data.
    unchecked = dict.fromkeys(models.MODEL_DATACLASS_REGISTRY, lambda args: None)
    try:
        with redirect_stderr(output), patch.dict(models.ARCH_CONFIG_REGISTRY, unchecked):
            return options.parse_args_and_arch(options.get_training_parser(), words)
    except SystemExit:
        reason = output.getvalue().splitlines()[-1].partition("error: ")[2]
        raise ValueError(f"fairseq-train rejects the flags: {reason}") from None


def build(args: Namespace, corpus: Corpus) -> BuiltModel:
    """Returns the model for fairseq-train's flags and the data; ValueError if the flags are invalid."""
    task = settings(args, tasks.TASK_DATACLASS_REGISTRY[args.task])
    task.data = task.seed = None
    has_settings = args.arch in models.MODEL_DATACLASS_REGISTRY
    model = settings(args, models.MODEL_DATACLASS_REGISTRY[args.arch]) if has_settings else args
    smoothing = args.label_smoothing if args.criterion == "label_smoothed_cross_entropy" else 0.0
    data = replace(corpus, lengths=(), rows=None, note="")
    is_roberta = args.task in WITH_MASK  # a pretraining has the same model as the fine-tunings
    if is_roberta:
        length = getattr(args, "max_positions", None) or args.tokens_per_sample
        model.max_positions = args.max_positions = length
        data = replace(data, labels=0)
    name = repr((args.arch, model, data.types if is_roberta else (args.task, task, data)))
    key = repr((name, task, smoothing))
    try:
        if name not in _models:
            cfg = OmegaConf.create({**vars(model), "_name": args.arch}) if has_settings else args
            with building():
                # Some parameters are made on the CPU.
                _models[name] = models.build_model(cfg, make_task(args.task, task, data)).to("meta")
    except SystemExit as error:
        raise ValueError(str(error.code).removeprefix("fairseq_lrpe: ")) from None
    return _built.setdefault(key, BuiltModel(_models[name], task, model, smoothing))


_models: dict[str, nn.Module] = {}
_built: dict[str, BuiltModel] = {}
"""What was built so far: each distinct model is built once."""


def settings(args: Namespace, dataclass: type) -> Namespace:
    """Returns the settings of a task or a model: fairseq's flags, and the defaults of those not given."""
    values = {}
    for field in fields(dataclass):
        default = None if field.default is MISSING else field.default
        values[field.name] = getattr(args, field.name, default)
    for name, value in values.items():
        while isinstance(value, str) and value.startswith("${"):  # such as "${model.decoder_embed_dim}"
            other = value[2:-1].rpartition(".")[2]
            value = values[name] = values[other] if values.get(other) != value else getattr(args, other, None)
    return Namespace(**values)


def make_task(name: str, args: Namespace, corpus: Corpus):
    """Returns what a model reads of its task, without data."""
    if name == "synthetic_lm":
        return tasks.TASK_REGISTRY[name](args)
    dictionaries = [SizedDictionary(size + (name in WITH_MASK)) for size in corpus.types] or [None]
    if name == "memory_lm":
        return MemoryLMTask(args, *dictionaries)
    about = {"inputs": corpus.inputs} | ({"pixels": {"mean": 0.0, "std": 1.0}} if corpus.pixels else {})
    joined = is_joined(about, getattr(args, "pairs", ""))
    return SimpleNamespace(
        source_dictionary=dictionaries[0],
        target_dictionary=dictionaries[-1],
        max_positions=lambda: getattr(args, "max_positions", None) or args.tokens_per_sample,
        cfg=args,
        about=about,
        labels=range(corpus.labels),
        joined=joined,
        apart=corpus.inputs > 1 and not joined,
    )
