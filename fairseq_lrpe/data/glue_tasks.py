"""The GLUE tasks with their file formats, flags of fairseq-train and metrics."""

from dataclasses import dataclass, field

from fairseq_lrpe.utils.errors import UserError

FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
MNLI_FILES = {  # matched sets, and mismatched sets as valid1 and test1
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
}
PAIR = ("sentence1", "sentence2")
YES_NO = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
MAX_SCORE = 5  # largest score of STS-B, by which the scores in prepared data are divided


@dataclass(frozen=True)
class Task:
    sentences: tuple[str, ...]  # names of the text columns
    label: str  # name of the label column
    labels: tuple[str, ...]  # class names in the order of their dictionary; empty for a regression task
    files: dict[str, str] = field(default_factory=lambda: FILES)  # {split: file}
    header: tuple[str, ...] = ()  # column names of labeled files, if they have no header line
    empty: bool = False  # whether sentences may be empty
    measure: str = "accuracy"  # name of the metric in tables
    logged: str = "accuracy"  # name of the metric in fairseq's log; it selects the best checkpoint
    flags: dict = field(default_factory=dict)  # flags of fairseq-train with which it logs the metric
    submission: dict[str, str] | None = None  # {file for GLUE's server: test split}; default: {task: "test"}

    @property
    def development(self) -> list[str]:
        return [split for split in self.files if split.startswith("valid")]

    @property
    def labeled(self) -> list[str]:
        return ["train", *self.development]


_ACCURACY_AND_F1 = {"report_acc_and_f1": True}
TASKS = {
    "CoLA": Task(
        ("sentence",),
        "label",
        YES_NO,
        header=("source", "label", "mark", "sentence"),
        measure="matthews",
        logged="mcc",
        flags={"report_mcc": True},
    ),
    "SST-2": Task(("sentence",), "label", YES_NO),
    "MRPC": Task(("#1 String", "#2 String"), "Quality", YES_NO, flags=_ACCURACY_AND_F1),
    "STS-B": Task(
        PAIR,
        "score",
        (),
        measure="pearson",
        logged="pearson",
        flags={"regression_target": True, "report_pearson_and_spearman": True},
    ),
    # QQP's training set contains a few empty questions; MNLI's has not been checked for them.
    "QQP": Task(("question1", "question2"), "is_duplicate", YES_NO, empty=True, flags=_ACCURACY_AND_F1),
    "MNLI": Task(
        PAIR,
        "gold_label",
        THREE_WAY,
        MNLI_FILES,
        empty=True,
        submission={"MNLI-m": "test", "MNLI-mm": "test1"},
    ),
    "QNLI": Task(("question", "sentence"), "label", TWO_WAY),
    "RTE": Task(PAIR, "label", TWO_WAY),
    "WNLI": Task(PAIR, "label", YES_NO),
}
PAPER_TASKS = [name for name in TASKS if name != "WNLI"]  # the eight tasks in the LRPE paper's tables


def get_task(name: str) -> Task:
    if name not in TASKS:
        raise UserError(f"unknown GLUE task {name!r}: choose from {', '.join(TASKS)}")
    return TASKS[name]
