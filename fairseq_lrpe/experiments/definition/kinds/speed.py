"""Speed and memory of training steps on random inputs, relative to those of a reference method."""

from typing import Literal

from omegaconf import DictConfig
from pydantic import PositiveInt

from fairseq_lrpe.experiments.definition.kinds.base import Kind
from fairseq_lrpe.experiments.definition.settings import Model, Settings
from fairseq_lrpe.methods import architecture, check_method


class SpeedSettings(Settings):
    data: str = ""  # the inputs are random
    evaluations: dict[str, Model | None] = {}
    model: Literal["lm", "roberta", "transformer"]  # family of the models
    reference: str | None = None  # method of the same attention to which others are relative (default: base)
    length: PositiveInt  # number of tokens of each sequence
    layers: PositiveInt
    vocab_size: PositiveInt
    rounds: PositiveInt  # number of training steps of each model


class Speed(Kind):
    """Kind of experiments that alternate training steps of a method and of the reference in one process.

    ``milliseconds`` is the median time of a step of the method, and ``relative_speed`` is the median time of
    a step of the reference divided by it. ``relative_memory`` is the method's peak memory, with the model and
    its optimizer, divided by that of the reference. Changes in a table's row do not apply to the reference.
    """

    settings = SpeedSettings
    trains = False
    task = ""
    family = ""
    metrics = {"relative_speed": "higher", "milliseconds": "lower", "relative_memory": "lower"}
    decimals = {**Kind.decimals, "milliseconds": 1}

    def flags(self, run, cfg, starts_from):
        reference = self.reference(cfg)
        check_method(reference, run.attention, "choose another reference")
        return {"arch": architecture(run.attention, cfg.model, reference)}

    def updates(self, cfg):
        return 0

    def reference(self, cfg: DictConfig) -> str:
        """Returns the method that others are compared with."""
        return cfg.reference or "base"


KIND = Speed()
