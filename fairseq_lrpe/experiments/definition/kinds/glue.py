"""Fine-tuning of a pretrained RoBERTa on GLUE tasks, evaluated on the predicted labels or scores."""

import math
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.data.glue_tasks import get_task
from fairseq_lrpe.experiments.definition.kinds.base import Evaluation, Kind, Settings
from fairseq_lrpe.experiments.inference import metrics
from fairseq_lrpe.methods import canonical
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PREPARE, REPOSITORY, display_path, file_exists

SHAPE = "encoder_layers encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads".split()
SHAPE += "encoder_normalize_before layernorm_embedding activation_fn untie_weights_roberta".split()
"""Flags that are copied from the pretrained checkpoint, besides those of attention and encoding."""


class GlueEvaluation(Evaluation):
    split: Literal["train", "valid", "valid1"]  # the labels of GLUE's test sets are secret


class GlueSettings(Settings[GlueEvaluation]):
    task: str | None = None  # usually a key of ``grid``
    epochs: PositiveInt
    warmup: float  # fraction of the updates


class Glue(Kind):
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
        splits = get_task(cfg.task).labeled  # only MNLI has the split valid1
        return {name: e for name, e in super().evaluations(cfg).items() if e["split"] in splits}

    def updates(self, cfg):
        rows = self.folder(cfg) / "rows.json"
        if not file_exists(rows):
            command = prepare_command(display_path(rows.parent)) or f"{PREPARE} glue {cfg.task}"
            remedy = f"`{command}` prepares it, or override data=FOLDER if its --out was FOLDER"
            raise UserError(f"{rows.parent} has no data of {cfg.task}: {remedy}")
        train = layout.read_object(rows, lambda counts: counts["train"] > 0)["train"]
        return cfg.epochs * math.ceil(train / cfg.batch.total)

    def flags(self, job):
        cfg, task, updates = job.cfg, get_task(job.cfg.task), self.updates(job.cfg)
        if job.starts_from is None:
            raise UserError(
                f"{job.run} has no pretrained model: set starts_from to an experiment or a checkpoint"
            )
        model = pretrained(job.starts_from)
        attention, method = method_of(job.starts_from)
        if (attention, canonical(method)) != (job.run.attention, canonical(job.run.method)):
            trained, requested = f"{method} in {attention}", f"{job.run.method} in {job.run.attention}"
            raise UserError(
                f"{job.starts_from} was trained with {trained} attention, not {requested} attention: "
                "select the method of this checkpoint"
            )
        dictionary, trained = self.folder(cfg) / "input0/dict.txt", model["data"] / "dict.txt"
        types = layout.vocabulary_size(dictionary) + 1  # with <mask>
        differs = file_exists(trained) and trained.read_bytes() != dictionary.read_bytes()
        if differs or types != model["types"]:
            raise UserError(
                f"{job.starts_from} has another vocabulary ({model['types']:,} tokens) than "
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
        return measure(job.cfg.task, *metrics.predict_split(job, name, self.folder(job.cfg)))

    def describe(self, cfg, measured):
        text = super().describe(cfg, measured)
        return text and text.replace("score", get_task(cfg.task).measure, 1)


@cache
def pretrained(path: Path) -> dict:
    """Returns {"arch", "flags" of the model, "types": vocabulary size, "data": folder} of a checkpoint."""
    from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint  # imports torch, which takes seconds

    state = read_checkpoint(path, "train one with `lrpe train roberta/...`")
    model, task = state["cfg"]["model"], state["cfg"]["task"]
    if "_roberta" not in str(model["_name"]):
        expected = "linear_roberta_... or softmax_roberta_..."
        raise UserError(f"{path} has the architecture {model['_name']}: expected {expected}")
    from fairseq_lrpe.config import method_flags  # imports fairseq, which takes seconds

    flags = {name: model[name] for name in SHAPE} | method_flags(Namespace(**model))
    flags["max_positions"] = model["max_positions"] or task.get("tokens_per_sample") or task["max_positions"]
    types = state["model"]["encoder.sentence_encoder.embed_tokens.weight"].size(0)
    data = REPOSITORY / task["data"].split(":")[0]
    return {"arch": model["_name"], "flags": flags, "types": types, "data": data}


def method_of(path: Path) -> tuple[str, str]:
    attention, _, method = pretrained(path)["arch"].partition("_roberta")
    return attention, method.removeprefix("_") or "by_flags"


def measure(name: str, predicted: list[str], target: list[str]) -> dict[str, float]:
    """Returns {metric: value in percent} of predictions for the GLUE task ``name``, and the number of "rows".

    "score" is the task's official metric, and "majority", which the regression task STS-B lacks, is its value
    for always predicting the most frequent label.
    """
    task = get_task(name)
    if not task.labels:
        values = metrics.score_metrics(*([float(x) for x in column] for column in (predicted, target)))
        return {"score": values[task.measure], **values, "rows": len(target)}
    values = metrics.label_metrics(predicted, target)
    majority = metrics.majority_metrics(target)
    return {"score": values[task.measure], **values, "majority": majority[task.measure], "rows": len(target)}


KIND = Glue()
