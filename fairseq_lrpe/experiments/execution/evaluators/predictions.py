"""Predicted labels and scores of a split, and metrics that compare them with the true ones."""

from pathlib import Path

from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator
from fairseq_lrpe.utils.files import read_lines


def predict_split(evaluator: Evaluator, name: str, data: Path) -> tuple[list[str], list[str]]:
    """Predicts the split of an evaluation; returns (predictions, targets) as text.

    The predictions are also written to predictions-<name>.tsv in the run's folder.

    Args:
        evaluator: the evaluator of a classifier's job.
        name: name of the evaluation.
        data: folder of the binarized data.
    """
    job = evaluator.job
    path = job.folder / f"predictions-{name}.tsv"
    split = evaluator.settings(name)["split"]
    command = ["python", "-m", "fairseq_lrpe", "classify", job.checkpoint, data, f"{split}={path}"]
    if job.cpu:
        command.append("--cpu")
    evaluator.run(command, name)
    return read_predictions(path)


def read_predictions(path: Path) -> tuple[list[str], list[str]]:
    """Returns (predictions, targets) in a file written by ``lrpe classify``, as text."""
    predictions = []
    targets = []
    _, *lines = read_lines(path)
    for line in lines:
        _, prediction, target = line.split("\t")
        predictions.append(prediction)
        targets.append(target)
    return predictions, targets


def label_metrics(predicted: list[str], target: list[str]) -> dict[str, float]:
    """Returns the accuracy, Matthews correlation and F1 score of label "1" in percent, as {metric: value}.

    F1 is included if "1" is one of at most two labels in ``target``.
    """
    from sklearn import metrics  # this import takes seconds

    values = {
        "accuracy": metrics.accuracy_score(target, predicted),
        "matthews": metrics.matthews_corrcoef(target, predicted),
    }
    if "1" in target and len(set(target)) <= 2:
        values["f1"] = metrics.f1_score(target, predicted, pos_label="1")
    return _in_percent(values)


def majority_metrics(target: list[str]) -> dict[str, float]:
    """Returns the :func:`label_metrics` of always predicting the most frequent label of ``target``."""
    majority = max(sorted(set(target)), key=target.count)
    return label_metrics([majority] * len(target), target)


def score_metrics(predicted: list[float], target: list[float]) -> dict[str, float]:
    """Returns the "pearson" and "spearman" correlations of predicted and true scores in percent."""
    from scipy.stats import pearsonr, spearmanr  # this import takes seconds

    return _in_percent(
        {
            "pearson": pearsonr(predicted, target).statistic,
            "spearman": spearmanr(predicted, target).statistic,
        }
    )


def _in_percent(values):
    return {name: 100 * float(value) for name, value in values.items()}
