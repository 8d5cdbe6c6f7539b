"""Predictions that a trained model writes into a file, and what measures them."""

from pathlib import Path


def command(checkpoint: Path, data: Path, files: dict[str, Path], cpu: bool) -> list[str]:
    """Returns the command that writes what a checkpoint predicts for splits of its task: {split: file}."""
    words = [str(checkpoint), str(data), *(f"{split}={path}" for split, path in files.items())]
    return ["python", "-m", "fairseq_lrpe.experiments.predict", *words, *["--cpu"] * cpu]


def read(path: Path) -> tuple[list[str], list[str]]:
    """Returns what a file of predictions says was predicted, and what is right."""
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return [row[1] for row in rows], [row[2] for row in rows]


def of_labels(predicted: list[str], target: list[str]) -> dict[str, float]:
    """Returns accuracy, Matthews' correlation and, of tasks with the label "1", its F1, in percent."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef  # seconds

    values = {"accuracy": accuracy_score(target, predicted), "matthews": matthews_corrcoef(target, predicted)}
    if "1" in target and len(set(target)) <= 2:
        values["f1"] = f1_score(target, predicted, pos_label="1")
    return {name: 100 * float(value) for name, value in values.items()}


def of_majority(target: list[str]) -> dict[str, float]:
    """Returns the measures of predicting always the most frequent label."""
    return of_labels([max(sorted(set(target)), key=target.count)] * len(target), target)


def of_scores(predicted: list[float], target: list[float]) -> dict[str, float]:
    """Returns the correlations of scores in percent."""
    from scipy.stats import pearsonr, spearmanr  # seconds, which only a measurement needs

    pair = predicted, target
    values = {"pearson": pearsonr(*pair).statistic, "spearman": spearmanr(*pair).statistic}
    return {name: 100 * float(value) for name, value in values.items()}
