"""Speed and memory of training steps on random inputs, relative to those of another method."""

import json
import shlex
from dataclasses import replace
from typing import Literal

from pydantic import PositiveInt

from fairseq_lrpe.experiments.definition.kinds.base import Kind, Settings
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.schema import Model
from fairseq_lrpe.methods import architecture, canonical, check_method
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.subprocesses import as_flags


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
    """Alternates training steps of a method and of the reference in one process.

    ``relative_speed`` is the median time of a step of the reference divided by that of the method,
    ``milliseconds``. ``relative_memory`` is the method's peak memory, with the model and its optimizer,
    divided by that of the reference. Changes in a table's row do not apply to the reference.
    """

    settings = SpeedSettings
    trains = False
    task = ""
    family = ""
    metrics = {"relative_speed": "higher", "milliseconds": "lower", "relative_memory": "lower"}
    decimals = {**Kind.decimals, "milliseconds": 1}

    def flags(self, job):
        check_method(reference(job), job.run.attention, "choose another reference")
        if job.extra_flags:
            example = f"train.{job.extra_flags[0].lstrip('-').replace('-', '_')}=VALUE"
            raise UserError(
                f"the kind speed does not run fairseq-train: use {example} instead of flags after --"
            )
        return {"arch": architecture(job.run.attention, job.cfg.model, reference(job))}

    def updates(self, cfg):
        return 0

    def evaluate(self, job, name):
        cfg, run, precision = job.cfg, job.run, job.precision
        method = canonical(reference(job))
        other = Run(run.experiment, run.attention, method, run.seed)
        grid = {key: text for key, text in run.changes if key in cfg.grid}
        other = other.changed(job.experiment.changes_for(method) | grid)
        out = job.folder / f"speed-{name}.json"
        settings = {
            "batch_size": cfg.batch.total,
            **{key: cfg[key] for key in ("length", "layers", "vocab_size", "rounds")},
            "cpu": job.cpu,
            "json": out,
        }
        models = [_model(cfg.model, one) for one in (replace(job, run=other), job)]
        flags = {"seed": run.seed, precision: precision != "fp32"}
        command = ["python", "-m", "fairseq_lrpe", "bench", "train", *models, *as_flags(settings)]
        job.call([*command, "--", *as_flags(flags)], name)
        base, measured = json.loads(out.read_text("utf-8"))
        found = {"relative_speed": measured["relative"], "milliseconds": measured["ms"]}
        return found | {"relative_memory": measured["MiB"] / base["MiB"]}


def reference(job) -> str:
    return job.cfg.reference or "base"


def _model(family, job):
    arch = architecture(job.run.attention, family, job.run.method)
    return shlex.join([arch, *as_flags(job.train_flags)])


KIND = Speed()
