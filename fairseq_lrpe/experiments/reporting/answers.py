"""Answers to "which encoding should I use?" from measured runs, for the atlas."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.aggregate import measure
from fairseq_lrpe.experiments.reporting.differences import LEAST_SEEDS, Differences
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.methods import METHODS, canonical

SHORT = "the lowest perplexity at the training length"
LONG = "the lowest perplexity at 16 times the training length"
RECALL = "the highest accuracy in recalling 32 pairs (training: up to 16)"
COPY = "the most correct tokens in copies of 25 items (training: up to 20)"
NEEDLE = "the most numbers found in texts of 16 times the training length"
MASKED = "the lowest perplexity of masked words"
REVIEWS = "the highest accuracy on IMDB's reviews, read by bytes"
PAIRS = "the highest accuracy on SNLI"
BLEU = "the highest BLEU on the test set"
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
    ("Bidirectional models, linear attention", MASKED, "iclr_table8", "wikitext103_valid", "linear"),
    ("Bidirectional models, softmax attention", MASKED, "iclr_table8", "wikitext103_valid", "softmax"),
    ("Classification of reviews, linear attention", REVIEWS, "tmlr_table4", "text", "linear"),
    ("Classification of reviews, softmax attention", REVIEWS, "tmlr_table4", "text", "softmax"),
    ("Classification of pairs of sentences, linear attention", PAIRS, "lfhc_table1", "snli", "linear"),
    ("Classification of pairs of sentences, softmax attention", PAIRS, "lfhc_table1", "snli", "softmax"),
    ("Translation, linear attention", BLEU, "iclr_table4", "wmt14_en_de_test", "linear"),
    ("Translation, softmax attention", BLEU, "iclr_table4", "wmt14_en_de_test", "softmax"),
    ("Images, linear attention", IMAGES, "tmlr_table3", "cifar10", "linear"),
    ("Images, softmax attention", IMAGES, "tmlr_table3", "cifar10", "softmax"),
]
"""(question, what the best has, table, column, attention)"""
SPEED, MEMORY = 0.9, 1.1
"""Least speed and greatest memory of a training step at 2,048 tokens (NoPE: 1) that are a small cost."""
METRICS = dict.fromkeys((SHORT, LONG, MASKED), "perplexity")
"""{what the best has: its metric, if it is compared by logarithms}"""
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

    @property
    def causal_only(self) -> bool:
        return causal_only(self.method)


@dataclass
class Answer:
    """The best method of a question, if it is measured, and those that cannot be told apart from it."""

    question: str
    basis: str  # what the best has, such as the lowest perplexity
    best: Measured | None = None
    equal: list[Measured] = field(default_factory=list)  # not different from the best
    compared: list[Measured] = field(default_factory=list)
    seeds: int = 0
    training: str = ""  # size of the models and length of their training

    @property
    def has_intervals(self) -> bool:
        return self.seeds >= LEAST_SEEDS


def causal_only(method: str) -> bool:
    return not METHODS[method].encoding_class.bidirectional


def answers(runs: Mapping[Run, RunRecord]) -> list[Answer]:
    """Returns an answer to each question, without a method if not all its methods and seeds are measured.

    The list is empty if no question is measured. Methods that diverged are not compared, and neither are rows
    with changed settings, such as those of token positions.
    """
    tables = {name: Table(name, "mini") for name in ("training_speed", *(about[2] for about in QUESTIONS))}
    found = []
    for question, basis, name, column, attention in QUESTIONS:
        answer, table = Answer(question, basis), tables[name]
        found.append(answer)
        measured = _encodings(table, column, attention, runs)
        differences = Differences({x.method: x.values for x in measured}, METRICS.get(basis))
        if question.startswith("Smallest cost"):
            speed, memory = (
                {x.method: x.mean for x in _encodings(tables["training_speed"], column, attention, runs)}
                for column in ("speed at 2,048", "memory at 2,048")
            )
            measured = [x for x in measured if speed.get(x.method, 0) >= SPEED and memory[x.method] <= MEMORY]
        if not measured:
            continue
        measured.sort(key=lambda x: x.mean, reverse=not basis.startswith("the lowest"))
        answer.best, *others = measured
        best = answer.best.method
        answer.equal = [x for x in others if not differences.is_different(x.method, best)]
        answer.compared = [x for x in others if x.method in COMPARED and x not in answer.equal]
        answer.seeds = min(len(x.values) for x in measured)
        answer.training = _training(table, column)
    return found if any(answer.best for answer in found) else []


def _training(table, column):
    """Returns the size of a column's models and the length of their training in words."""
    cfg = table.experiments[next(x.experiment for x in table.cells if x.column == column)].cfg
    sizes = {key: cfg.train.get(key) for key in ("encoder_layers", "decoder_layers")}
    layers = " + ".join(str(number) for number in sizes.values() if number)
    width = cfg.train.get("encoder_embed_dim") or cfg.train.get("decoder_embed_dim")
    unit = next((unit for unit in ("epochs", "rounds") if cfg.get(unit)), "updates")
    return f"{layers} layers of width {width}, {cfg[unit]:,} {unit}"


def _encodings(table, column, attention, runs):
    rows = {(row.attention, row.row) for row in table.rows if row.method in METHODS and not row.changes}
    found = []
    for cell in table.cells:
        if (cell.column, cell.attention) != (column, attention) or (attention, cell.row) not in rows:
            continue
        measured = measure(cell, runs)
        if len(measured.values) < measured.planned:
            return []
        if all(map(math.isfinite, measured.values.values())):
            decimals = cell.kind.decimals.get(cell.metric, 2)
            found.append(Measured(canonical(cell.method), measured.values, decimals))
    return found
