"""GLUE's tasks: how fairseq is told of each, and the measures of its predictions."""

from dataclasses import dataclass, field
from pathlib import Path

from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

REGRESSION_SCALE = 5
"""STS-B's scores are 0 to 5; data_prep divides them by it."""


@dataclass(frozen=True)
class Task:
    """``classes`` is 1 for a score; ``measure`` is the one that tables show.

    ``best`` is its name in fairseq's log, by which the best epoch is chosen; ``flags`` make fairseq log it.
    ``splits``: {name of a result: development set}, ``tests``: {file of a submission: test set}.
    """

    name: str
    classes: int
    measure: str = "accuracy"
    best: str = "accuracy"
    flags: dict = field(default_factory=dict)
    splits: dict | None = None
    tests: dict | None = None

    def __post_init__(self):
        object.__setattr__(self, "splits", self.splits or {self.name: "valid"})
        object.__setattr__(self, "tests", self.tests or {self.name: "test"})


TASKS = {
    task.name: task
    for task in (
        Task("CoLA", 2, "matthews", "mcc", {"report_mcc": True}),
        Task("SST-2", 2),
        Task("MRPC", 2, flags={"report_acc_and_f1": True}),
        Task(
            "STS-B", 1, "pearson", "pearson", {"regression_target": True, "report_pearson_and_spearman": True}
        ),
        Task("QQP", 2, flags={"report_acc_and_f1": True}),
        Task(
            "MNLI",
            3,
            splits={"MNLI": "valid", "MNLI-mm": "valid1"},
            tests={"MNLI-m": "test", "MNLI-mm": "test1"},
        ),
        Task("QNLI", 2),
        Task("RTE", 2),
        Task("WNLI", 2),
    )
}
PAPER = [name for name in TASKS if name != "WNLI"]
"""The eight tasks of LRPE's tables."""


def task_of(split):
    """The task that has a result of this name."""
    return next(task for task in TASKS.values() if split in task.splits)


def check_tasks(names):
    for name in names:
        if name not in TASKS:
            raise ValueError(f"GLUE has no task {name!r}: choose from {', '.join(TASKS)}")


def measure(task, path):
    """{measure: value in percent} of a file of predictions, "score" among them: the task's own measure.

    Accuracy, F1 of the label "1" and Matthews' correlation of labels; Pearson's and Spearman's of scores.
    """
    rows = [line.split("\t") for line in Path(path).read_text().splitlines()[1:]]
    predicted, target = ([row[column] for row in rows] for column in (1, 2))
    if task.classes == 1:
        predicted, target = ([float(x) for x in column] for column in (predicted, target))
        values = {
            "pearson": pearsonr(predicted, target).statistic,
            "spearman": spearmanr(predicted, target).statistic,
        }
    else:
        values = {
            "accuracy": accuracy_score(target, predicted),
            "matthews": matthews_corrcoef(target, predicted),
        }
        if "1" in target:
            values["f1"] = f1_score(target, predicted, pos_label="1")
    values = {name: 100 * float(value) for name, value in values.items()}
    return {"score": values[task.measure], **values, "rows": len(rows)}
