"""Fine-tuning of a pretrained RoBERTa on a task of GLUE, measured by its predictions."""

import json
import logging
import math
from argparse import Namespace
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from omegaconf import MISSING

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.data.glue_tasks import TASKS, get_task
from fairseq_lrpe.experiments.inference import metrics
from fairseq_lrpe.experiments.spec.kinds.base import Kind, Settings
from fairseq_lrpe.methods import canonical
from fairseq_lrpe.utils.files import REPOSITORY, display_path

SHAPE = "encoder_layers encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads".split()
SHAPE += "encoder_normalize_before layernorm_embedding activation_fn untie_weights_roberta".split()
"""The flags that a model has to share with the one it goes on from, beside those of its position."""


@dataclass
class GlueSettings(Settings):
    """Adds the ``task``, ``epochs`` of its rows, and ``warmup``, the part in which the rate rises."""

    task: str = MISSING
    epochs: int = MISSING
    warmup: float = MISSING


class Glue(Kind):
    """Trains by fairseq's sentence_prediction on one task of GLUE, from a checkpoint of our RoBERTa."""

    settings = GlueSettings
    task = "sentence_prediction"
    family = "roberta"
    metrics = dict.fromkeys("score accuracy f1 matthews pearson spearman".split(), "higher")

    def check(self, cfg):
        for rate in cfg.choose.get("train.lr", ()):
            if not isinstance(rate, float | int) or not 0 < rate < math.inf:
                raise ValueError(f"choose.train.lr has {rate!r}: learning rates are numbers above 0")
        labelled = dict.fromkeys(split for task in TASKS.values() for split in task.labelled)
        for name, split in ((name, e["split"]) for name, e in super().evaluations(cfg).items()):
            if split not in labelled:
                known = ", ".join(labelled)
                raise ValueError(f"evaluations.{name}: GLUE has no labels of {split!r}, only of {known}")

    def data(self, cfg):
        folder = self.folder(cfg)
        return [folder / name for name in layout.sentences(self.splits(cfg))]

    def folder(self, cfg):
        return REPOSITORY / cfg.data / cfg.task / "bin"

    def folders(self, cfg):
        return [self.folder(cfg)]

    def watched(self, job):
        return f"valid_{get_task(job.cfg.task).logged}"

    def evaluations(self, cfg):
        """Returns those of the task: MNLI alone has a second development set."""
        splits = get_task(cfg.task).labelled
        return {name: e for name, e in super().evaluations(cfg).items() if e["split"] in splits}

    def updates(self, cfg):
        rows = self.folder(cfg) / "rows.json"
        if not rows.is_file():
            command = (
                prepare_command(display_path(rows.parent)) or f"bash data_prep/prepare.sh glue {cfg.task}"
            )
            remedy = f"`{command}` prepares it, or override data=FOLDER"
            raise ValueError(f"{rows.parent} holds no data of {cfg.task}: {remedy} with its --out")
        return cfg.epochs * math.ceil(json.loads(rows.read_text())["train"] / cfg.batch.total)

    def flags(self, job):
        cfg, task, updates = job.cfg, get_task(job.cfg.task), self.updates(job.cfg)
        model = pretrained(job.starts_from)
        attention, method = method_of(job.starts_from)
        if (attention, canonical(method)) != (job.run.attention, canonical(job.run.method)):
            asked = f"{job.run.method} in {job.run.attention} attention"
            raise ValueError(f"{job.starts_from} is of {method} in {attention} attention, not of {asked}")
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
        """Returns the measures of the split's predictions, which stay in predictions-<name>.tsv."""
        file, split = job.folder / f"predictions-{name}.tsv", self.evaluations(job.cfg)[name]["split"]
        folder, cpu = self.folder(job.cfg), job.launch.cpu
        job.call(metrics.prediction_command(job.checkpoint, folder, {split: file}, cpu), name)
        return measure(job.cfg.task, file)

    def told(self, cfg, measured):
        """Returns the task's measure, beside it what always the most frequent label would have."""
        if "score" not in measured:
            return None
        said = f"{get_task(cfg.task).measure} {measured['score']:.2f}"
        if "majority" in measured:
            said += f", always the most frequent label {measured['majority']:.2f}"
        return said


@cache
def pretrained(path: Path) -> dict:
    """Returns what has to be known of a checkpoint to go on from it."""
    from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint  # imports torch, which takes seconds

    state = read_checkpoint(path, "scripts/train.sh roberta/... makes one")
    model, task = state["cfg"]["model"], state["cfg"]["task"]
    if "_roberta" not in str(model["_name"]):
        what = "a <linear|softmax>_roberta_... is needed"
        raise ValueError(f"{path} is of the architecture {model['_name']}: {what}")
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import tells of packages for speech
    from fairseq_lrpe.config import method_flags  # seconds, of fairseq's import

    flags = {name: model[name] for name in SHAPE} | method_flags(Namespace(**model))
    flags["max_positions"] = model["max_positions"] or task.get("tokens_per_sample") or task["max_positions"]
    types = state["model"]["encoder.sentence_encoder.embed_tokens.weight"].size(0)
    data = REPOSITORY / task["data"].split(":")[0]
    return {"arch": model["_name"], "flags": flags, "types": types, "data": data}


def method_of(path: Path) -> tuple[str, str]:
    """Returns a checkpoint's attention and method, which is by_flags where its architecture names none."""
    attention, _, method = pretrained(path)["arch"].partition("_roberta")
    return attention, method.removeprefix("_") or "by_flags"


def measure(name: str, path: Path) -> dict[str, float]:
    """Returns {measure: value in percent} of a file of predictions; "score" is that of the task ``name``.

    Labels have accuracy, F1, Matthews' correlation and "majority", scores Pearson's and Spearman's.
    """
    task, (predicted, target) = get_task(name), metrics.read_predictions(path)
    if not task.labels:
        values = metrics.score_metrics(*([float(x) for x in column] for column in (predicted, target)))
        return {"score": values[task.measure], **values, "rows": len(target)}
    values = metrics.label_metrics(predicted, target)
    majority = metrics.majority_metrics(target)
    return {"score": values[task.measure], **values, "majority": majority[task.measure], "rows": len(target)}


KIND = Glue()
