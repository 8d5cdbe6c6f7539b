"""Fine-tuning of a pretrained RoBERTa on GLUE tasks, evaluated by predictions."""

import json
import logging
import math
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.data.glue_tasks import get_task
from fairseq_lrpe.experiments.inference import metrics
from fairseq_lrpe.experiments.spec.kinds.base import Evaluation, Kind, Settings
from fairseq_lrpe.methods import canonical
from fairseq_lrpe.utils.files import REPOSITORY, display_path

SHAPE = "encoder_layers encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads".split()
SHAPE += "encoder_normalize_before layernorm_embedding activation_fn untie_weights_roberta".split()
"""Flags that a model must share with its pretrained checkpoint, besides those of its positions."""


class GlueEvaluation(Evaluation):
    """GLUE's test sets have no labels."""

    split: Literal["train", "valid", "valid1"]


class GlueSettings(Settings):
    """Adds ``task`` (usually set by ``grid``), ``epochs``, and ``warmup``, a fraction of the updates."""

    task: str | None = None
    epochs: PositiveInt
    warmup: float
    evaluations: dict[str, GlueEvaluation | None] = {}


class Glue(Kind):
    """Trains fairseq's sentence_prediction on one GLUE task, from a checkpoint of our RoBERTa."""

    settings = GlueSettings
    task = "sentence_prediction"
    family = "roberta"
    metrics = dict.fromkeys("score accuracy f1 matthews pearson spearman".split(), "higher")

    def data(self, cfg):
        folder = self.folder(cfg)
        return [folder / name for name in layout.sentences(self.splits(cfg))]

    def folder(self, cfg):
        return REPOSITORY / cfg.data / cfg.task / "bin"

    def folders(self, cfg):
        return [self.folder(cfg)]

    def validation_metric(self, job):
        return f"valid_{get_task(job.cfg.task).logged}"

    def evaluations(self, cfg):
        """Returns the evaluations of splits that the task has; only MNLI has a second development set."""
        splits = get_task(cfg.task).labelled
        return {name: e for name, e in super().evaluations(cfg).items() if e["split"] in splits}

    def updates(self, cfg):
        rows = self.folder(cfg) / "rows.json"
        if not rows.is_file():
            command = (
                prepare_command(display_path(rows.parent)) or f"bash data_prep/prepare.sh glue {cfg.task}"
            )
            remedy = f"`{command}` prepares it, or override data=FOLDER"
            raise ValueError(f"{rows.parent} has no data of {cfg.task}: {remedy} with its --out")
        return cfg.epochs * math.ceil(json.loads(rows.read_text())["train"] / cfg.batch.total)

    def flags(self, job):
        cfg, task, updates = job.cfg, get_task(job.cfg.task), self.updates(job.cfg)
        model = pretrained(job.starts_from)
        attention, method = method_of(job.starts_from)
        if (attention, canonical(method)) != (job.run.attention, canonical(job.run.method)):
            requested = f"{job.run.method} in {job.run.attention} attention"
            raise ValueError(f"{job.starts_from} has {method} in {attention} attention, not {requested}")
        dictionary = self.folder(cfg) / "input0" / "dict.txt"
        types, trained_on = layout.vocabulary_size(dictionary) + 1, model["data"] / "dict.txt"  # with <mask>
        same = not trained_on.is_file() or trained_on.read_bytes() == dictionary.read_bytes()
        if types != model["types"] or not same:
            raise ValueError(
                f"{job.starts_from} has another vocabulary ({model['types']:,} types) than "
                f"{self.folder(cfg)} ({types:,}): prepare both with the same dictionary, such as GPT-2's"
            )
        return {
            **{"arch": model["arch"], **model["flags"]},
            **{f"no_{name}": True for name, value in model["flags"].items() if value is False},
            "num_classes": len(task.labels) or 1,
            **task.flags,
            "best_checkpoint_metric": task.logged,
            "maximize_best_checkpoint_metric": True,
            "total_num_update": updates,
            "warmup_updates": int(cfg.warmup * updates),
            "valid_subset": ",".join(task.development),
        }

    def evaluate(self, job, name):
        """Returns the metrics of the split's predictions, which are kept in predictions-<name>.tsv."""
        return measure(job.cfg.task, *metrics.predict_split(job, name, self.folder(job.cfg)))

    def describe(self, cfg, measured):
        """Returns the task's metric, compared with that of the most frequent label."""
        metric = get_task(cfg.task).measure
        return metrics.describe_score(metric, measured.get("score"), measured.get("majority"))


@cache
def pretrained(path: Path) -> dict:
    """Returns the architecture, flags, vocabulary size and data folder of a pretrained checkpoint."""
    from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint  # imports torch, which takes seconds

    state = read_checkpoint(path, "scripts/train.sh roberta/... makes one")
    model, task = state["cfg"]["model"], state["cfg"]["task"]
    if "_roberta" not in str(model["_name"]):
        required = "a <linear|softmax>_roberta_... is required"
        raise ValueError(f"{path} has the architecture {model['_name']}: {required}")
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # importing fairseq logs missing speech packages
    from fairseq_lrpe.config import method_flags  # imports fairseq, which takes seconds

    flags = {name: model[name] for name in SHAPE} | method_flags(Namespace(**model))
    flags["max_positions"] = model["max_positions"] or task.get("tokens_per_sample") or task["max_positions"]
    types = state["model"]["encoder.sentence_encoder.embed_tokens.weight"].size(0)
    data = REPOSITORY / task["data"].split(":")[0]
    return {"arch": model["_name"], "flags": flags, "types": types, "data": data}


def method_of(path: Path) -> tuple[str, str]:
    """Returns a checkpoint's attention and method; the method is by_flags if the architecture has none."""
    attention, _, method = pretrained(path)["arch"].partition("_roberta")
    return attention, method.removeprefix("_") or "by_flags"


def measure(name: str, predicted: list[str], target: list[str]) -> dict[str, float]:
    """Returns {metric: value in percent} of predictions for a task; "score" is the task's own metric.

    Labels have accuracy, F1, Matthews correlation and "majority", scores Pearson and Spearman correlation.
    """
    task = get_task(name)
    if not task.labels:
        values = metrics.score_metrics(*([float(x) for x in column] for column in (predicted, target)))
        return {"score": values[task.measure], **values, "rows": len(target)}
    values = metrics.label_metrics(predicted, target)
    majority = metrics.majority_metrics(target)
    return {"score": values[task.measure], **values, "majority": majority[task.measure], "rows": len(target)}


KIND = Glue()
