"""What a kind of experiment is, and the settings that every experiment has."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING, DictConfig

from fairseq_lrpe.data import layout
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.utils.files import REPOSITORY, display_path
from fairseq_lrpe.utils.subprocesses import as_flags


@dataclass
class Batch:
    """An update's batch: ``total`` and what fits a GPU, in sequences or tokens."""

    total: int = MISSING
    per_gpu: int = MISSING
    unit: str = "sequences"


@dataclass
class Evaluate:
    """What all evaluations of an experiment share: the checkpoint, and more flags of fairseq's command."""

    checkpoint: str = "checkpoint_best.pt"
    flags: dict[str, Any] = field(default_factory=dict)


@dataclass
class Settings:
    """The keys of an experiment's YAML; a kind with more of them extends this."""

    kind: str = MISSING  # the file in experiments/kinds
    source: str = ""  # which paper and table say so
    data: str = MISSING  # the folder of binarised data, as seen from the repository
    batch: Batch = field(default_factory=Batch)
    # fairseq-train's flags with underscores; true is a flag without a value, null leaves one out.
    train: dict[str, Any] = field(default_factory=dict)
    by_method: dict[str, dict[str, Any]] = field(default_factory=dict)  # {method: more of them}
    seeds: list[int] = field(default_factory=lambda: [1])
    evaluate: Evaluate = field(default_factory=Evaluate)
    # {name: its settings}, null leaves one out; ``split`` is one of every kind.
    evaluations: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)  # {key: values}, with a run for each
    # {key: values}: each is tried, and the best by the first evaluation counts.
    choose: dict[str, list[Any]] = field(default_factory=dict)
    starts_from: str | None = None  # an experiment whose runs come before, or a checkpoint


@dataclass
class TrainingSettings(Settings):
    """Adds the updates of one training; a kind that counts them by itself does without."""

    updates: int = MISSING


class Curve(NamedTuple):
    """Names what plots show: a key of fairseq's JSON log, its label, and which values are better.

    What the log has is shown times ``factor``, with so many ``decimals``. A falling curve's end is shown, and
    all of it if it is ``whole``: where a rule is found at once, when it is found says more than the end.
    """

    key: str
    label: str
    better: str = "lower"
    factor: float = 1.0
    decimals: int = 2
    whole: bool = False


class Kind:
    """A kind of experiment: all that runner, schedule and report ask of it.

    A kind is one file in this folder: a subclass, of which there is one instance.
    """

    settings: type = TrainingSettings
    """What its YAMLs may say."""
    task: str
    """fairseq's --task."""
    family: str
    """Of our architectures."""
    metrics: dict[str, str]
    """{name: "lower" or "higher", which is better}; the first is shown when a run ends, and chooses."""
    decimals: dict[str, int] = {"loss": 4, "nats": 4, "tokens_per_second": 0}
    """{metric: how many decimals people compare}; of a metric that is not here, two."""
    curve: Curve | None = None
    """What the plots show, if anything."""
    evaluation_keys: tuple[str, ...] = ("split",)
    """What an evaluation may say."""

    def check(self, cfg: DictConfig) -> None:
        """Raises ValueError for settings that cannot be met."""

    def data(self, cfg: DictConfig) -> list[Path]:
        """Returns the files that must exist before a run starts; their sizes tell one data from another."""
        raise NotImplementedError

    def folders(self, cfg: DictConfig) -> list[Path]:
        """Returns the data folders that fairseq-train reads: the one named, and its numbered shards."""
        return layout.shards(REPOSITORY / cfg.data)

    def splits(self, cfg: DictConfig) -> Iterable[str]:
        """Returns the splits that a training and its evaluations read, each once."""
        return dict.fromkeys(["train", "valid", *(e["split"] for e in self.evaluations(cfg).values())])

    def updates(self, cfg: DictConfig) -> int:
        """Returns the updates of one training."""
        return cfg.updates

    def flags(self, job) -> dict[str, object]:
        """Returns fairseq-train's flags that neither the YAML nor the machine says."""
        return {"arch": architecture(job.run.attention, self.family, job.run.method)}

    def watched(self, job) -> str:
        """Returns the key of fairseq's JSON log that every validation of a training is told by."""
        return self.curve.key if self.curve else "valid_loss"

    def evaluations(self, cfg: DictConfig) -> dict[str, dict]:
        """Returns {name: settings} of the evaluations that these settings have."""
        return {name: dict(settings) for name, settings in cfg.evaluations.items() if settings is not None}

    def evaluate(self, job, name: str) -> dict[str, float]:
        """Returns {metric: value} of one of the evaluations, as it measures the job's checkpoint."""
        raise NotImplementedError

    def told(self, cfg: DictConfig, measured: dict) -> str | None:
        """Returns what is said of an evaluation when a run ends: its first metric, if it has any."""
        shown = next((metric for metric in self.metrics if metric in measured), None)
        return shown and f"{shown} {measured[shown]:.2f}"

    def evaluated(self, job, name: str, program: str, split_flag: str, **flags) -> Path:
        """Runs fairseq's command on the split of an evaluation; returns the log with all it printed.

        It is one process, in single precision: each of several would report a part of the split alone.
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


def validated(log: Path, split: str) -> dict[str, object]:
    """Returns what fairseq-validate measured of a split, without the split's name before each key."""
    entry = json.loads(re.search(rf"\| {split} \| (\{{.*\}})$", log.read_text(), re.M)[1])
    return {key.removeprefix(f"{split}_"): value for key, value in entry.items()}
