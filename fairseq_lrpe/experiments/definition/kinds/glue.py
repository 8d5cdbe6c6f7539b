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
from fairseq_lrpe.experiments.definition.kinds.base import Kind, in_folder
from fairseq_lrpe.experiments.definition.settings import Evaluation, Settings
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
        return in_folder(folder, layout.sentences(self.splits(cfg)))

    def folder(self, cfg):
        return REPOSITORY / cfg.data / cfg.task / "bin"

    def folders(self, cfg):
        return [self.folder(cfg)]

    def validation_metric(self, cfg):
        return f"valid_{get_task(cfg.task).logged}"

    def evaluations(self, cfg):
        labeled = {}
        for name, settings in super().evaluations(cfg).items():
            if settings["split"] in get_task(cfg.task).labeled:  # only MNLI has the split valid1
                labeled[name] = settings
        return labeled

    def updates(self, cfg):
        rows = self.folder(cfg) / "rows.json"
        if not file_exists(rows):
            command = prepare_command(display_path(rows.parent)) or f"{PREPARE} glue {cfg.task}"
            remedy = f"`{command}` prepares it, or override data=FOLDER if its --out was FOLDER"
            raise UserError(f"{rows.parent} has no data of {cfg.task}: {remedy}")
        train = layout.read_object(rows, lambda counts: counts["train"] > 0)["train"]
        return cfg.epochs * math.ceil(train / cfg.batch.total)

    def flags(self, run, cfg, starts_from):
        task = get_task(cfg.task)
        updates = self.updates(cfg)
        if starts_from is None:
            raise UserError(
                f"{run} has no pretrained model: set starts_from to an experiment or a checkpoint"
            )
        self._check_method(run, starts_from)
        model = pretrained(starts_from)
        self._check_vocabulary(cfg, starts_from)
        disabled = {f"no_{name}": True for name, value in model["flags"].items() if value is False}
        return {
            "arch": model["arch"],
            **model["flags"],
            **disabled,
            "num_classes": len(task.labels) or 1,
            **task.flags,
            "best_checkpoint_metric": task.logged,
            "maximize_best_checkpoint_metric": True,
            "total_num_update": updates,
            "warmup_updates": int(cfg.warmup * updates),
            "valid_subset": ",".join(task.development),
        }

    def _check_method(self, run, starts_from):
        attention, method = method_of(starts_from)
        if (attention, canonical(method)) != (run.attention, canonical(run.method)):
            raise UserError(
                f"{starts_from} was trained with {method} in {attention} attention, "
                f"not {run.method} in {run.attention} attention: select the method of this checkpoint"
            )

    def _check_vocabulary(self, cfg, starts_from):
        model = pretrained(starts_from)
        dictionary = self.folder(cfg) / "input0/dict.txt"
        types = layout.vocabulary_size(dictionary) + 1  # with <mask>
        trained = model["data"] / "dict.txt"
        differs = file_exists(trained) and trained.read_bytes() != dictionary.read_bytes()
        if differs or types != model["types"]:
            raise UserError(
                f"{starts_from} has another vocabulary ({model['types']:,} tokens) than "
                f"{self.folder(cfg)} ({types:,}): prepare both with the same dictionary, such as GPT-2's"
            )

    def describe(self, cfg, measured):
        text = super().describe(cfg, measured)
        return text and text.replace("score", get_task(cfg.task).measure, 1)


@cache
def pretrained(path: Path) -> dict:
    """Returns the properties of a pretrained checkpoint.

    These are its "arch", the "flags" of its model, "types", the size of its vocabulary, and "data", the
    folder of its data.
    """
    from fairseq_lrpe.fairseq_ext.checkpoint import read_checkpoint  # imports torch, which takes seconds

    state = read_checkpoint(path, "train one with `lrpe train roberta/...`")
    model = state["cfg"]["model"]
    task = state["cfg"]["task"]
    if "_roberta" not in str(model["_name"]):
        expected = "linear_roberta_... or softmax_roberta_..."
        raise UserError(f"{path} has the architecture {model['_name']}: expected {expected}")
    from fairseq_lrpe.config_parts import method_flags  # imports fairseq, which takes seconds

    flags = {name: model[name] for name in SHAPE} | method_flags(Namespace(**model))
    flags["max_positions"] = model["max_positions"] or task.get("tokens_per_sample") or task["max_positions"]
    types = state["model"]["encoder.sentence_encoder.embed_tokens.weight"].size(0)
    data = REPOSITORY / task["data"].split(":")[0]
    return {"arch": model["_name"], "flags": flags, "types": types, "data": data}


def method_of(path: Path) -> tuple[str, str]:
    attention, _, method = pretrained(path)["arch"].partition("_roberta")
    return attention, method.removeprefix("_") or "by_flags"


KIND = Glue()
