"""The tasks of GLUE: what their files look like, how fairseq is told of each, and what measures them."""

from dataclasses import dataclass, field

FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
TWICE = {  # the matched sets, and the mismatched ones as a second part
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
HIGHEST = 5
"""STS-B's scores are 0 to 5; prepared data has them divided by it."""


@dataclass(frozen=True)
class Task:
    """One task of GLUE.

    ``sentences`` and ``label`` are the names of columns; ``labels`` stand in the order of their dictionary,
    none of them for a score. ``header`` is that of labelled files that lack one; ``empty``: a sentence may be
    empty. ``measure`` is the one that tables show, ``logged`` its name in fairseq's log, by which the best
    epoch is chosen, and ``flags`` make fairseq log it. ``submission``: {file for GLUE's server: test set}.
    """

    sentences: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    files: dict[str, str] = field(default_factory=lambda: FILES)
    header: tuple[str, ...] = ()
    empty: bool = False
    measure: str = "accuracy"
    logged: str = "accuracy"
    flags: dict = field(default_factory=dict)
    submission: dict[str, str] | None = None

    @property
    def development(self) -> list[str]:
        """The splits on which it is measured."""
        return [split for split in self.files if split.startswith("valid")]

    @property
    def labelled(self) -> list[str]:
        """The splits that have labels."""
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
    # QQP's training set has a few empty questions; MNLI's files have not been looked through for such.
    "QQP": Task(("question1", "question2"), "is_duplicate", YES_NO, empty=True, flags=_ACCURACY_AND_F1),
    "MNLI": Task(
        PAIR, "gold_label", THREE_WAY, TWICE, empty=True, submission={"MNLI-m": "test", "MNLI-mm": "test1"}
    ),
    "QNLI": Task(("question", "sentence"), "label", TWO_WAY),
    "RTE": Task(PAIR, "label", TWO_WAY),
    "WNLI": Task(PAIR, "label", YES_NO),
}
PAPERS = [name for name in TASKS if name != "WNLI"]
"""The eight tasks of LRPE's tables."""


def task_named(name: str) -> Task:
    """Returns the task of this name. ValueError with the choices where there is none."""
    if name not in TASKS:
        raise ValueError(f"GLUE has no task {name!r}: choose from {', '.join(TASKS)}")
    return TASKS[name]
