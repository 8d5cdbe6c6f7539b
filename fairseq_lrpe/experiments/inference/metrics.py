"""Metrics of the predicted labels or scores that a trained model writes to a file."""

from pathlib import Path

from fairseq_lrpe.utils.files import read_lines


def prediction_command(checkpoint: Path, data: Path, files: dict[str, Path], cpu: bool) -> list[str]:
    """Returns the ``lrpe classify`` command that writes the predictions for {split: file}."""
    arguments = [str(checkpoint), str(data), *(f"{split}={path}" for split, path in files.items())]
    return ["python", "-m", "fairseq_lrpe", "classify", *arguments, *["--cpu"] * cpu]


def predict_split(job, name: str, data: Path) -> tuple[list[str], list[str]]:
    """Predicts the split of the evaluation ``name``; returns (predictions, targets) as text."""
    split, path = job.kind.evaluations(job.cfg)[name]["split"], job.folder / f"predictions-{name}.tsv"
    job.call(prediction_command(job.checkpoint, data, {split: path}, job.cpu), name)
    return read_predictions(path)


def read_predictions(path: Path) -> tuple[list[str], list[str]]:
    """Returns (predictions, targets) in a file written by ``lrpe classify``, as text."""
    rows = [line.split("\t") for line in read_lines(path)][1:]
    return [row[1] for row in rows], [row[2] for row in rows]


def label_metrics(predicted: list[str], target: list[str]) -> dict[str, float]:
    """Returns accuracy, Matthews correlation and, for binary tasks, the F1 of the label "1", in percent."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef  # this import takes seconds

    values = {"accuracy": accuracy_score(target, predicted), "matthews": matthews_corrcoef(target, predicted)}
    if "1" in target and len(set(target)) <= 2:
        values["f1"] = f1_score(target, predicted, pos_label="1")
    return {name: 100 * float(value) for name, value in values.items()}


def majority_metrics(target: list[str]) -> dict[str, float]:
    """Returns ``label_metrics`` of always predicting the most frequent label."""
    return label_metrics([max(sorted(set(target)), key=target.count)] * len(target), target)


def score_metrics(predicted: list[float], target: list[float]) -> dict[str, float]:
    """Returns the Pearson and Spearman correlations in percent."""
    from scipy.stats import pearsonr, spearmanr  # this import takes seconds

    pair = predicted, target
    values = {"pearson": pearsonr(*pair).statistic, "spearman": spearmanr(*pair).statistic}
    return {name: 100 * float(value) for name, value in values.items()}
