"""Answers to "which encoding should I use?" from measured runs, for the atlas."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.aggregate import difference
from fairseq_lrpe.experiments.reporting.records import RunRecord

SHORT = "the lowest perplexity at the training length"
LONG = "the lowest perplexity at 16 times the training length"
RECALL = "the highest accuracy in recalling 32 pairs (training: up to 16)"
COPY = "the most correct tokens in copies of 25 items (training: up to 20)"
NEEDLE = "the most numbers found in texts of 16 times the training length"
IMAGES = "the highest accuracy on CIFAR-10"
QUESTIONS = [
    ("Linear attention", SHORT, "extrapolation", "1 ×", "linear"),
    ("Softmax attention", SHORT, "extrapolation", "1 ×", "softmax"),
    ("Short training and long use, linear attention", LONG, "extrapolation", "16 ×", "linear"),
    ("Short training and long use, softmax attention", LONG, "extrapolation", "16 ×", "softmax"),
    ("Recall, linear attention", RECALL, "recall", "32 pairs", "linear"),
    ("Recall, softmax attention", RECALL, "recall", "32 pairs", "softmax"),
    ("Copying, linear attention", COPY, "length_generalization", "copy 25 tokens", "linear"),
    ("Copying, softmax attention", COPY, "length_generalization", "copy 25 tokens", "softmax"),
    ("Needle, linear attention", NEEDLE, "needle", "16 ×", "linear"),
    ("Needle, softmax attention", NEEDLE, "needle", "16 ×", "softmax"),
    ("Smallest cost, linear attention", SHORT, "extrapolation", "1 ×", "linear"),
    ("Smallest cost, softmax attention", SHORT, "extrapolation", "1 ×", "softmax"),
    ("Images, linear attention", IMAGES, "tmlr_table3", "cifar10", "linear"),
]
"""(question, what the best has, table, column, attention)"""
SPEED, MEMORY = 0.9, 1.1
"""Least speed and greatest memory of a training step at 2,048 tokens (NoPE: 1) that are a small cost."""
COMPARED = ("nope", "rope", "base")
"""Methods whose numbers are named beside the best."""


@dataclass
class Measured:
    """A method and {seed: value} of its runs."""

    method: str
    values: dict[int, float]
    decimals: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    def __str__(self) -> str:
        return f"{self.mean:.{self.decimals}f}"


@dataclass
class Answer:
    question: str
    basis: str  # what the best has, such as the lowest perplexity
    best: Measured
    equal: list[Measured]  # the 95% interval of the paired difference includes 0, and the values overlap
    compared: list[Measured]


def answers(runs: Mapping[Run, RunRecord]) -> list[Answer]:
    """Returns an answer to each question whose column is measured for all methods and seeds.

    Methods that diverged are not compared, and neither are rows with changed settings, such as those of token
    positions.
    """
    tables = {name: Table(name, "mini") for name in ("training_speed", *(about[2] for about in QUESTIONS))}
    found = []
    for question, basis, name, column, attention in QUESTIONS:
        measured = _encodings(tables[name], column, attention, runs)
        if question.startswith("Smallest cost"):
            speed, memory = (
                {x.method: x.mean for x in _encodings(tables["training_speed"], column, attention, runs)}
                for column in ("speed at 2,048", "memory at 2,048")
            )
            measured = [x for x in measured if speed.get(x.method, 0) >= SPEED and memory[x.method] <= MEMORY]
        if measured:
            measured.sort(key=lambda x: x.mean, reverse=not basis.startswith("the lowest"))
            best, *others = measured
            equal = [x for x in others if _is_equal(x, best)]
            compared = [x for x in others if x.method in COMPARED and x not in equal]
            found.append(Answer(question, basis, best, equal, compared))
    return found


def _encodings(table, column, attention, runs):
    rows = {(row.attention, row.row) for row in table.rows if row.method and not row.changes}
    cells = [x for x in table.cells if (x.column, x.attention) == (column, attention) and x.runs]
    cells, found = [x for x in cells if (attention, x.row) in rows], []
    if not all(run in runs for cell in cells for run in cell.runs):
        return []
    for cell in cells:
        values = {run.seed: runs[run].value(cell.evaluation, cell.metric) for run in cell.runs}
        if all(value is not None and math.isfinite(value) for value in values.values()):
            found.append(Measured(cell.runs[0].method, values, cell.kind.decimals.get(cell.metric, 2)))
    return found


def _is_equal(one, other):
    paired = difference(one.values, other.values)
    ours, theirs = sorted(one.values.values()), sorted(other.values.values())
    is_apart = ours[-1] < theirs[0] or theirs[-1] < ours[0]
    return not (paired["low"] > 0 or paired["high"] < 0 or (is_apart and len(ours) >= 3))
