"""Predicts labels or scores with a trained classifier or a fine-tuned model."""

from pathlib import Path

import torch
from fairseq import utils

from fairseq_lrpe.data.glue_tasks import MAX_SCORE
from fairseq_lrpe.experiments.inference.load import load_model
from fairseq_lrpe.tasks.classification import ClassificationTask
from fairseq_lrpe.utils.files import write_atomic

BATCH_SIZE = 32
TASKS = ("sentence_prediction", "classification")


@torch.no_grad()
def predict(model, task, split: str, batch_size: int) -> list[tuple[str, str | None]]:
    """Returns (prediction, target or None) of each row of a split as text, in the order of the rows."""
    task.load_dataset(split)
    dataset, rows = task.dataset(split), {}
    batches = task.get_batch_iterator(dataset, max_sentences=batch_size).next_epoch_itr(shuffle=False)
    device = next(model.parameters()).device
    for sample in batches:
        if device.type == "cuda":
            sample = utils.move_to_cuda(sample)
        logits = compute_logits(model, task, sample)
        values = [logits if is_regression(task) else logits.argmax(-1), sample.get("target")]
        texts = [[None] * len(logits) if x is None else to_text(task, x.view(-1).tolist()) for x in values]
        rows.update(zip(sample["id"].tolist(), zip(*texts, strict=True), strict=True))
    return [rows[i] for i in range(len(dataset))]


def compute_logits(model, task, sample: dict) -> torch.Tensor:
    """Returns the logits of a batch, of shape (batch, labels), or its scores, of shape (batch, 1)."""
    if isinstance(task, ClassificationTask):
        return model(**sample["net_input"])
    return model(**sample["net_input"], classification_head_name=task.cfg.classification_head_name)[0]


def is_regression(task) -> bool:
    """Returns whether the task predicts scores instead of labels."""
    return getattr(task.cfg, "regression_target", False)


def to_text(task, values: list) -> list[str]:
    """Converts scores to STS-B's scale from 0 to 5, and indices of labels to the labels, as text."""
    if is_regression(task):
        return [f"{MAX_SCORE * x:.6f}" for x in values]
    if isinstance(task, ClassificationTask):
        return [task.labels[i] for i in values]
    return [task.label_dictionary[i + task.label_dictionary.nspecial] for i in values]


def write(path: Path, rows: list[tuple[str, str | None]]) -> None:
    """Writes the index, prediction and target (if known) of each row to a TSV file, as GLUE requires."""
    columns = ["index", "prediction", "target"][: 2 if any(target is None for _, target in rows) else 3]
    lines = ["\t".join([str(i), *row][: len(columns)]) for i, row in enumerate(rows)]
    write_atomic(path, "\n".join(["\t".join(columns), *lines]) + "\n")


def run(checkpoint: Path, name: str, data: Path, splits: list[str], cpu: bool) -> None:
    """Writes the predictions for each SPLIT=FILE in ``splits``; ``name`` is the task of the model."""
    if not splits:
        raise ValueError("no SPLIT=FILE was given: pass, for example, valid=predictions.tsv")
    for pair in splits:
        if "=" not in pair:
            raise ValueError(f"expected SPLIT=FILE, such as valid=predictions.tsv, not {pair!r}")
    if name not in TASKS:
        expected = f"a model of {' or '.join(TASKS)}"
        raise ValueError(f"{checkpoint} was trained on the task {name}: expected {expected}")
    model, task = load_model(checkpoint, cpu, data=str(data))
    for pair in splits:
        split, _, path = pair.partition("=")
        if isinstance(task, ClassificationTask) and split not in task.about["rows"]:
            raise ValueError(f"{data} has no split {split!r}: choose from {', '.join(task.about['rows'])}")
        write(Path(path), predict(model, task, split, BATCH_SIZE))
