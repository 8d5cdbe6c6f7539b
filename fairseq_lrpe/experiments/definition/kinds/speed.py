"""Training speed relative to the method base of the same attention, measured without training a model."""

import json
from typing import Literal

from pydantic import PositiveInt

from fairseq_lrpe.experiments.definition.kinds.base import Kind, Settings
from fairseq_lrpe.experiments.definition.schema import Model
from fairseq_lrpe.methods import architecture
from fairseq_lrpe.utils.subprocesses import as_flags


class SpeedSettings(Settings):
    data: str = ""  # the inputs are random
    evaluations: dict[str, Model | None] = {}
    model: Literal["lm", "roberta", "transformer"]  # family of the models
    length: PositiveInt  # number of tokens of each sequence
    layers: PositiveInt
    vocab_size: PositiveInt
    rounds: PositiveInt  # number of training steps of each model


class Speed(Kind):
    """Alternates training steps of a method and of the method base in one process.

    ``relative_speed`` is the median time of a step of base divided by that of the method, ``milliseconds``.
    """

    settings = SpeedSettings
    trains = False
    task = ""
    family = ""
    metrics = {"relative_speed": "higher", "milliseconds": "lower"}
    decimals = {**Kind.decimals, "milliseconds": 1}

    def updates(self, cfg):
        return 0

    def evaluate(self, job, name):
        cfg, run, precision = job.cfg, job.run, job.precision
        archs = [architecture(run.attention, cfg.model, method) for method in ("base", run.method)]
        out = job.folder / f"speed-{name}.json"
        settings = {
            "batch_size": cfg.batch.total,
            **{key: cfg[key] for key in ("length", "layers", "vocab_size", "rounds")},
            "cpu": job.cpu,
            "json": out,
        }
        flags = {**cfg.train, "seed": run.seed, precision: precision != "fp32"}
        command = ["python", "-m", "fairseq_lrpe", "bench", "train", *archs, *as_flags(settings)]
        job.call([*command, "--", *as_flags(flags)], name)
        _, measured = json.loads(out.read_text())
        return {"relative_speed": measured["relative"], "milliseconds": measured["ms"]}


KIND = Speed()
