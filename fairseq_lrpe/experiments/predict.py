"""Writes what a classifier or a fine-tuned model predicts for splits of its task, a file for each.

A file has a line for each row of the split, in its order: index, prediction, and the target where the split
has one. Labels are written as in the task's files, scores from 0 to 5.
"""

import argparse
from pathlib import Path

import torch
from fairseq import checkpoint_utils, utils

import fairseq_lrpe.models  # noqa: F401  (registers the architectures)
from fairseq_lrpe.checkpoint import read_checkpoint
from fairseq_lrpe.files import write_whole
from fairseq_lrpe.glue_tasks import HIGHEST
from fairseq_lrpe.programs import a_path, one_sentence
from fairseq_lrpe.tasks.classification import ClassificationTask

BATCH = 32
TASKS = ("sentence_prediction", "classification")


@torch.no_grad()
def predict(model, task, split, batch_size):
    """Returns [(prediction, target or None)], both as text, in the order of the split."""
    task.load_dataset(split)
    dataset, rows = task.dataset(split), {}
    batches = task.get_batch_iterator(dataset, max_sentences=batch_size).next_epoch_itr(shuffle=False)
    device = next(model.parameters()).device
    for sample in batches:
        if device.type == "cuda":
            sample = utils.move_to_cuda(sample)
        logits = logits_of(model, task, sample)
        found = [logits if has_scores(task) else logits.argmax(-1), sample.get("target")]
        texts = [[None] * len(logits) if x is None else as_text(task, x.view(-1).tolist()) for x in found]
        rows.update(zip(sample["id"].tolist(), zip(*texts, strict=True), strict=True))
    return [rows[i] for i in range(len(dataset))]


def logits_of(model, task, sample):
    """Returns (B, labels), or (B, 1) of scores."""
    if isinstance(task, ClassificationTask):
        return model(**sample["net_input"])
    return model(**sample["net_input"], classification_head_name=task.cfg.classification_head_name)[0]


def has_scores(task):
    """Whether a score is predicted, and not a label."""
    return getattr(task.cfg, "regression_target", False)


def as_text(task, values):
    """Returns scores or labels as the task's files have them."""
    if has_scores(task):
        return [f"{HIGHEST * x:.6f}" for x in values]
    if isinstance(task, ClassificationTask):
        return [task.labels[i] for i in values]
    return [task.label_dictionary[i + task.label_dictionary.nspecial] for i in values]


def write(path, rows):
    """Writes the predictions as GLUE wants them submitted, with the targets beside them if there are any."""
    columns = ["index", "prediction", "target"][: 2 if any(target is None for _, target in rows) else 3]
    lines = ["\t".join([str(i), *row][: len(columns)]) for i, row in enumerate(rows)]
    write_whole(path, "\n".join(["\t".join(columns), *lines]) + "\n")


def main():
    parser = argparse.ArgumentParser(prog="predict", description=__doc__)
    parser.add_argument("checkpoint", type=a_path)
    parser.add_argument("data", type=a_path, help="such as data/glue/RTE/bin or data/listops/bin")
    parser.add_argument("splits", nargs="+", metavar="SPLIT=FILE", help="valid=predictions.tsv")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    with one_sentence("predict"):
        for pair in args.splits:
            if "=" not in pair:
                raise ValueError(f"{pair!r}: give SPLIT=FILE, such as valid=predictions.tsv")
        makers = "scripts/train.sh classification/... or scripts/finetune_glue.sh makes one"
        state = read_checkpoint(args.checkpoint, makers)
        if (name := state["cfg"]["task"].get("_name")) not in TASKS:
            wanted = " or ".join(TASKS)
            raise ValueError(f"{args.checkpoint} is of the task {name}: one of {wanted} is needed")
        [model], _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(args.checkpoint)], arg_overrides={"data": str(args.data)}
        )
        model.eval()
        if torch.cuda.is_available() and not args.cpu:
            model.cuda()
        for pair in args.splits:
            split, _, path = pair.partition("=")
            if isinstance(task, ClassificationTask) and split not in task.about["rows"]:
                raise ValueError(
                    f"{args.data} has no split {split}: its splits are {', '.join(task.about['rows'])}"
                )
            write(Path(path), predict(model, task, split, BATCH))


if __name__ == "__main__":
    main()
