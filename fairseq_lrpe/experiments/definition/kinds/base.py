"""The base class of kinds of experiments, and the settings that all experiments have."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from omegaconf import DictConfig
from pydantic import AfterValidator, Field, PositiveInt, field_validator

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.schema import Model
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PLUGIN, REPOSITORY, display_path
from fairseq_lrpe.utils.subprocesses import as_flags

Values = Annotated[list[Any], Field(min_length=1)]


class Batch(Model):
    total: PositiveInt
    per_gpu: PositiveInt
    unit: Literal["sequences", "tokens"] = "sequences"


def check_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Raises UserError if the name of a flag is written with dashes, as on a command line."""
    for name in flags:
        if "-" in name:
            raise UserError(f"{name}: names of flags have underscores: write {name.replace('-', '_')}")
    return flags


Flags = Annotated[dict[str, Any], AfterValidator(check_flags)]
"""{flag of fairseq's command with underscores: value}; true is a flag without a value, null omits it."""
EVALUATION_FLAGS = "user_dir path task cpu distributed_world_size log_format gen_subset valid_subset".split()
"""Flags of fairseq's commands that an evaluation sets."""


class Evaluate(Model):
    checkpoint: str = "checkpoint_best.pt"
    flags: Flags = {}  # additional flags of fairseq's command

    @field_validator("flags")
    @classmethod
    def check_own_flags(cls, flags: dict) -> dict:
        for name in EVALUATION_FLAGS:
            if name in flags:
                raise UserError(f"{name} cannot be set, because lrpe chooses its value: omit it")
        return flags


class Evaluation(Model):
    split: str


EvaluationType = TypeVar("EvaluationType", bound=Evaluation)


class Settings(Model, Generic[EvaluationType]):
    """The keys of an experiment's YAML file; kinds with further keys extend this class and Evaluation."""

    kind: str  # name of a file in experiments/definition/kinds
    source: str = ""  # paper and table from which the settings are taken
    data: str  # folder of binarized data, relative to the repository
    batch: Batch
    train: Flags = {}
    by_method: dict[str, Flags] = {}  # {method: additional flags}
    seeds: list[int] = [1]
    evaluate: Evaluate = Evaluate()
    evaluations: dict[str, EvaluationType | None] = {}  # {name: settings}; null omits the evaluation
    grid: dict[str, Values] = {}  # {key: values}, with one run per combination
    choose: dict[str, Values] = {}  # {key: values}; the best run in the first evaluation is reported
    starts_from: str | None = None  # experiment or checkpoint that initializes the models

    @field_validator("evaluations")
    @classmethod
    def check_names(cls, evaluations: dict) -> dict:
        if "training" in evaluations:
            raise UserError("the name 'training' is reserved for the training speed: use another name")
        return evaluations


class TrainingSettings(Settings[EvaluationType]):
    updates: PositiveInt  # some kinds derive it from the data instead


class Curve(NamedTuple):
    key: str  # key of fairseq's JSON log
    label: str  # label of the y-axis
    better: str = "lower"  # or "higher"
    factor: float = 1.0  # factor by which logged values are multiplied
    decimals: int = 2  # number of decimals in the legend
    show_all: bool = False  # whether all values of a falling curve are shown, and not only those near its end


class Kind:
    """Base class of kinds of experiments; each is a file with a subclass and its only instance, ``KIND``.

    The argument ``job`` of methods, an ``experiments.execution.runner.Job``, is the run to execute.
    """

    settings: type[Settings] = TrainingSettings  # pydantic model of the YAML files of this kind
    trains: bool = True  # whether a run trains a model, whose checkpoint is then evaluated
    task: str  # value of fairseq's --task
    family: str  # model family in the names of architectures, such as "lm"
    metrics: dict[str, str]  # {name: "lower" or "higher"}; ``choose`` and summaries use the first metric
    decimals: dict[str, int] = {"bits": 4, "nats": 4, "tokens_per_second": 0}  # in tables; otherwise 2
    curve: Curve | None = None  # validation metric that plots show, or None for no plots

    def check(self, cfg: DictConfig) -> None:
        """Raises UserError for invalid combinations of settings."""

    def data(self, cfg: DictConfig) -> list[Path]:
        """Returns the data files that a run needs; it cannot be resumed after a change of their sizes."""
        return []

    def folders(self, cfg: DictConfig) -> list[Path]:
        """Returns the data folders that are joined to the positional argument of fairseq-train."""
        return layout.shards(REPOSITORY / cfg.data) if cfg.data else []

    def splits(self, cfg: DictConfig) -> Iterable[str]:
        return dict.fromkeys(["train", "valid", *(e["split"] for e in self.evaluations(cfg).values())])

    def updates(self, cfg: DictConfig) -> int:
        return cfg.updates

    def flags(self, job) -> dict[str, object]:
        """Returns {name with underscores: value} of the flags of fairseq-train that this kind adds."""
        return {"arch": architecture(job.run.attention, self.family, job.run.method)}

    def validation_metric(self, job) -> str:
        """Returns the key of fairseq's JSON log whose value is printed after each validation."""
        return self.curve.key if self.curve else "valid_loss"

    def evaluations(self, cfg: DictConfig) -> dict[str, dict]:
        return {name: dict(settings) for name, settings in cfg.evaluations.items() if settings is not None}

    def evaluate(self, job, name: str) -> dict[str, float]:
        """Evaluates the job's checkpoint and returns {metric: value} of one evaluation."""
        raise NotImplementedError

    def evaluate_all(self, job, names: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
        """Yields (name, {metric: value}) of several evaluations; a kind may compute them in one process."""
        for name in names:
            yield name, self.evaluate(job, name)

    def describe(self, cfg: DictConfig, measured: dict) -> str | None:
        shown = next((f"{name} {measured[name]:.2f}" for name in self.metrics if name in measured), None)
        if shown and "majority" in measured:
            shown += f" (always predicting the most frequent label: {measured['majority']:.2f})"
        return shown

    def run_evaluation(self, job, name: str, program: str, split_flag: str, **flags) -> Path:
        """Runs a command of fairseq on the split of an evaluation and returns the path of its log."""
        flags = {
            "user_dir": display_path(PLUGIN),
            "path": display_path(job.checkpoint),
            "num_workers": job.cfg.train.get("num_workers"),  # its processes need memory in /dev/shm
            **job.cfg.evaluate.flags,
            "distributed_world_size": 1,  # each of several processes would report only a part of the split
            split_flag: self.evaluations(job.cfg)[name]["split"],
            "cpu": job.cpu,
            "log_format": "json",
            **flags,
        }
        data = [job.cfg.data] if job.cfg.data else []
        return job.call([program, *map(str, (*data, *as_flags(flags)))], name)

    def validate(self, job, name: str, **flags) -> dict[str, object]:
        log = self.run_evaluation(job, name, "fairseq-validate", "valid_subset", task=self.task, **flags)
        split = self.evaluations(job.cfg)[name]["split"]
        entry = json.loads(re.search(rf"\| {split} \| (\{{.*\}})$", log.read_text("utf-8"), re.M)[1])
        return {key.removeprefix(f"{split}_"): value for key, value in entry.items()}
