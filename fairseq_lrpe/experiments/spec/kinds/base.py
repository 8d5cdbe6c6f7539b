"""The interface of a kind of experiment, and the settings that all experiments have."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from omegaconf import DictConfig
from pydantic import Field, PositiveInt, field_validator

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.spec.schema import Model
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.utils.files import REPOSITORY, display_path
from fairseq_lrpe.utils.subprocesses import as_flags

Values = Annotated[list[Any], Field(min_length=1)]


class Batch(Model):
    """The batch of one update: in total, and as much of it as fits a GPU."""

    total: PositiveInt
    per_gpu: PositiveInt
    unit: Literal["sequences", "tokens"] = "sequences"


class Evaluate(Model):
    """Settings of all evaluations: the checkpoint, and additional flags of fairseq's command."""

    checkpoint: str = "checkpoint_best.pt"
    flags: dict[str, Any] = {}


class Evaluation(Model):
    """Settings of one evaluation; a kind with more of them extends this."""

    split: str


class Settings(Model):
    """The keys of an experiment's YAML file; a kind with more of them extends this."""

    kind: str  # a file in experiments/spec/kinds
    source: str = ""  # the paper and table of these settings
    data: str  # folder of binarized data, relative to the repository
    batch: Batch
    # Flags of fairseq-train with underscores; true is a flag without a value, null omits one.
    train: dict[str, Any] = {}
    by_method: dict[str, dict[str, Any]] = {}  # {method: additional flags}
    seeds: list[int] = [1]
    evaluate: Evaluate = Evaluate()
    evaluations: dict[str, Evaluation | None] = {}  # null omits one
    grid: dict[str, Values] = {}  # {key: values}, with one run per value
    choose: dict[str, Values] = {}  # {key: values}; the best by the first evaluation is reported
    starts_from: str | None = None  # an experiment whose runs come first, or a checkpoint

    @field_validator("evaluations")
    @classmethod
    def check_names(cls, evaluations: dict) -> dict:
        if "training" in evaluations:
            raise ValueError("the name 'training' is reserved for the training speed: use another name")
        return evaluations


class TrainingSettings(Settings):
    """Adds the number of updates; kinds that derive it from the data extend ``Settings`` instead."""

    updates: PositiveInt


class Curve(NamedTuple):
    """What plots show of a training.

    Args:
        key: key of fairseq's JSON log.
        label: label of the axis.
        better: "lower" or "higher".
        factor: factor by which logged values are multiplied.
        decimals: number of decimals.
        whole: shows all of a falling curve instead of its end only.
    """

    key: str
    label: str
    better: str = "lower"
    factor: float = 1.0
    decimals: int = 2
    whole: bool = False


class Kind:
    """A kind of experiment: everything about it that the runner, the scheduler and reports use.

    Each kind is a file in this folder with a subclass and its only instance, ``KIND``.
    """

    settings: type[Settings] = TrainingSettings
    """Model of its YAML files."""
    task: str
    """fairseq's --task."""
    family: str
    """Model family of its architectures."""
    metrics: dict[str, str]
    """{name: "lower" or "higher", which is better}; the first one is printed and used by ``choose``."""
    decimals: dict[str, int] = {"loss": 4, "nats": 4, "tokens_per_second": 0}
    """{metric: number of decimals in tables}; the default is 2."""
    curve: Curve | None = None
    """What plots show, if anything."""

    def check(self, cfg: DictConfig) -> None:
        """Raises ValueError for invalid combinations of settings."""

    def data(self, cfg: DictConfig) -> list[Path]:
        """Returns the files that must exist before a run starts; their sizes identify the data."""
        raise NotImplementedError

    def folders(self, cfg: DictConfig) -> list[Path]:
        """Returns the data folders that fairseq-train reads: the configured one and its numbered shards."""
        return layout.shards(REPOSITORY / cfg.data)

    def splits(self, cfg: DictConfig) -> Iterable[str]:
        """Returns the splits that a training and its evaluations read, without duplicates."""
        return dict.fromkeys(["train", "valid", *(e["split"] for e in self.evaluations(cfg).values())])

    def updates(self, cfg: DictConfig) -> int:
        """Returns the number of updates of a training."""
        return cfg.updates

    def flags(self, job) -> dict[str, object]:
        """Returns the flags of fairseq-train that depend on neither the YAML nor the machine."""
        return {"arch": architecture(job.run.attention, self.family, job.run.method)}

    def validation_metric(self, job) -> str:
        """Returns the key of fairseq's JSON log that is printed after each validation."""
        return self.curve.key if self.curve else "valid_loss"

    def evaluations(self, cfg: DictConfig) -> dict[str, dict]:
        """Returns {name: settings} of the evaluations."""
        return {name: dict(settings) for name, settings in cfg.evaluations.items() if settings is not None}

    def evaluate(self, job, name: str) -> dict[str, float]:
        """Evaluates the job's checkpoint and returns {metric: value} of one evaluation."""
        raise NotImplementedError

    def describe(self, cfg: DictConfig, measured: dict) -> str | None:
        """Returns a summary of an evaluation: its first metric, if it has any."""
        shown = next((metric for metric in self.metrics if metric in measured), None)
        return shown and f"{shown} {measured[shown]:.2f}"

    def run_evaluation(self, job, name: str, program: str, split_flag: str, **flags) -> Path:
        """Runs fairseq's command on the split of an evaluation and returns the log of its output.

        It runs in one process and in single precision; several processes would report parts of the split.
        """
        flags = {
            "user_dir": "fairseq_lrpe",
            "path": display_path(job.checkpoint),
            **job.cfg.evaluate.flags,
            "distributed_world_size": 1,
            split_flag: self.evaluations(job.cfg)[name]["split"],
            "cpu": job.launch.cpu,
            "log_format": "json",
            **flags,
        }
        data = [job.cfg.data] if job.cfg.data else []
        return job.call([program, *map(str, (*data, *as_flags(flags)))], name)

    def validate(self, job, name: str, **flags) -> dict[str, object]:
        """Runs fairseq-validate on the split of an evaluation and returns the logged metrics."""
        log = self.run_evaluation(job, name, "fairseq-validate", "valid_subset", task=self.task, **flags)
        split = self.evaluations(job.cfg)[name]["split"]
        entry = json.loads(re.search(rf"\| {split} \| (\{{.*\}})$", log.read_text(), re.M)[1])
        return {key.removeprefix(f"{split}_"): value for key, value in entry.items()}
