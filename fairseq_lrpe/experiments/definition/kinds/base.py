"""The base class of kinds of experiments."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from fairseq_lrpe.data import layout
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.settings import Settings, TrainingSettings
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.utils.files import REPOSITORY


def in_folder(folder: Path, names: Iterable[str]) -> list[Path]:
    """Returns the paths of the files ``names`` in a folder."""
    return [folder / name for name in names]


class Curve(NamedTuple):
    key: str  # key of fairseq's JSON log
    label: str  # label of the y-axis
    better: str = "lower"  # or "higher"
    factor: float = 1.0  # factor by which logged values are multiplied
    decimals: int = 2  # number of decimals in the legend
    show_all: bool = False  # whether all values of a falling curve are shown, and not only those near its end


class Kind:
    """Base class of kinds of experiments. The file of a kind has a subclass and its only instance, ``KIND``.

    A kind defines the settings, data, flags and metrics of its experiments. The ``Evaluator`` in the file of
    the same name in ``execution/evaluators`` measures the metrics; without such a file, fairseq-validate
    does.
    """

    settings: type[Settings] = TrainingSettings  # pydantic model of the YAML files of this kind
    trains: bool = True  # whether a run trains a model, whose checkpoint is then evaluated
    task: str  # value of fairseq's --task
    family: str  # model family in the names of architectures, such as "lm"
    metrics: dict[str, str]  # {name: "lower" or "higher"}; ``choose`` and summaries use the first metric
    decimals: dict[str, int] = {"bits": 4, "nats": 4, "tokens_per_second": 0}  # in tables; otherwise 2
    curve: Curve | None = None  # validation metric that plots show, or None for no plots
    validation_flags: dict[str, object] = {}  # further flags of fairseq-validate

    @property
    def training_metrics(self) -> list[str]:
        """The metrics of the training itself: its speed and, with a curve, the last value of the curve."""
        metrics = ["tokens_per_second"]
        if self.curve is not None:
            metrics.append(self.curve.key)
        return metrics

    def better(self, metric: str) -> str:
        """Returns which values of a metric are better, "lower" or "higher"."""
        if self.curve is not None and metric == self.curve.key:
            return self.curve.better
        return self.metrics.get(metric, "higher")

    def decimals_of(self, metric: str) -> int:
        """Returns the number of decimals of a metric in tables."""
        if self.curve is not None and metric == self.curve.key:
            return self.curve.decimals
        return self.decimals.get(metric, 2)

    def check(self, cfg: DictConfig) -> None:
        """Raises UserError for invalid combinations of settings."""

    def data(self, cfg: DictConfig) -> list[Path]:
        """Returns the paths of a run's data files. A run cannot be resumed after their sizes have changed."""
        return []

    def folders(self, cfg: DictConfig) -> list[Path]:
        """Returns the data folders that are joined to the positional argument of fairseq-train."""
        return layout.shards(REPOSITORY / cfg.data) if cfg.data else []

    def splits(self, cfg: DictConfig) -> Iterable[str]:
        """Returns the splits of training and of the evaluations, each once."""
        return dict.fromkeys(["train", "valid", *self.evaluated_splits(cfg)])

    def evaluated_splits(self, cfg: DictConfig) -> list[str]:
        return [settings["split"] for settings in self.evaluations(cfg).values()]

    def updates(self, cfg: DictConfig) -> int:
        return cfg.updates

    def flags(self, run: Run, cfg: DictConfig, starts_from: Path | None) -> dict[str, object]:
        """Returns {name with underscores: value} of the flags of fairseq-train that this kind adds.

        Args:
            run: the run to train.
            cfg: the settings of the run.
            starts_from: the checkpoint that initializes the model of the run, or None.
        """
        return {"arch": architecture(run.attention, self.family, run.method)}

    def validation_metric(self, cfg: DictConfig) -> str:
        """Returns the key of fairseq's JSON log whose value is printed after each validation."""
        return self.curve.key if self.curve else "valid_loss"

    def evaluations(self, cfg: DictConfig) -> dict[str, dict]:
        """Returns {name: settings} of the evaluations of a run."""
        return {name: dict(settings) for name, settings in cfg.evaluations.items() if settings is not None}

    def describe(self, cfg: DictConfig, measured: dict) -> str | None:
        """Returns the first of the kind's metrics in ``measured`` as text, or None if it has none of them.

        Args:
            cfg: the settings of the evaluated run.
            measured: {metric: value} of an evaluation.
        """
        for name in self.metrics:
            if name in measured:
                text = f"{name} {measured[name]:,.2f}"
                if "majority" in measured:
                    text += f" (always predicting the most frequent label: {measured['majority']:.2f})"
                return text
        return None
