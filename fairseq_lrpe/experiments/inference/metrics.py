"""Metrics of the predicted labels or scores that a trained model writes to a file."""

from pathlib import Path

from fairseq_lrpe.utils.files import read_lines


def predict_split(job, name: str, data: Path) -> tuple[list[str], list[str]]:
    """Writes predictions-<name>.tsv for an evaluation's split; returns (predictions, targets) as text."""
    split = job.kind.evaluations(job.cfg)[name]["split"]
    path = job.folder / f"predictions-{name}.tsv"
    words = [str(job.checkpoint), str(data), f"{split}={path}", *["--cpu"] * job.cpu]
    job.call(["python", "-m", "fairseq_lrpe", "classify", *words], name)
    return read_predictions(path)


def read_predictions(path: Path) -> tuple[list[str], list[str]]:
    """Returns (predictions, targets) in a file written by ``lrpe classify``, as text."""
    rows = [line.split("\t") for line in read_lines(path)][1:]
    return [row[1] for row in rows], [row[2] for row in rows]


def label_metrics(predicted: list[str], target: list[str]) -> dict[str, float]:
    """Returns accuracy, Matthews correlation and, for two labels with a "1", the F1 of "1", in percent."""
    from sklearn import metrics  # this import takes seconds

    pair = target, predicted
    values = {"accuracy": metrics.accuracy_score(*pair), "matthews": metrics.matthews_corrcoef(*pair)}
    if "1" in target and len(set(target)) <= 2:
        values["f1"] = metrics.f1_score(*pair, pos_label="1")
    return {name: 100 * float(value) for name, value in values.items()}


def majority_metrics(target: list[str]) -> dict[str, float]:
    """Returns ``label_metrics`` of always predicting the most frequent label."""
    return label_metrics([max(sorted(set(target)), key=target.count)] * len(target), target)


def score_metrics(predicted: list[float], target: list[float]) -> dict[str, float]:
    """Returns the Pearson and Spearman correlations in percent."""
    from scipy.stats import pearsonr, spearmanr  # this import takes seconds

    values = {"pearson": pearsonr(predicted, target), "spearman": spearmanr(predicted, target)}
    return {name: 100 * float(value.statistic) for name, value in values.items()}
