"""Answers to "which encoding should I use?" from measured runs, for the atlas."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.cells import measure
from fairseq_lrpe.experiments.reporting.differences import LEAST_SEEDS, Differences
from fairseq_lrpe.experiments.reporting.measured_columns import methods_with_small_cost
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, unit_of_length
from fairseq_lrpe.methods import METHODS, canonical
from fairseq_lrpe.utils.numbers import format_number

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
"""(question, criterion of the best method, table, column, attention)"""
METRICS = dict.fromkeys((SHORT, LONG, MASKED), "perplexity")
"""{criterion: its metric}, for criteria whose values are compared by their logarithms"""
COMPARED = ("nope", "rope", "base")
"""Methods whose numbers are named beside those of the best method."""


@dataclass
class Measured:
    """The measurements of a method in a column: {seed: value}, and the number of shown decimals."""

    method: str
    values: dict[int, float]
    decimals: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    def __str__(self) -> str:
        return format_number(self.mean, self.decimals)

    @property
    def causal_only(self) -> bool:
        return causal_only(self.method)


@dataclass
class Answer:
    """The best method for a question, if its column is measured, and the methods that equal or follow it."""

    question: str
    basis: str  # the criterion of the best method, such as the lowest perplexity
    best: Measured | None = None
    equal: list[Measured] = field(default_factory=list)  # not different from the best
    compared: list[Measured] = field(default_factory=list)
    seeds: int = 0
    training: str = ""  # size of the models and length of their training

    @property
    def has_intervals(self) -> bool:
        return self.seeds >= LEAST_SEEDS


def causal_only(method: str) -> bool:
    return not METHODS[method].bidirectional


def answers(runs: Mapping[Run, RunRecord]) -> list[Answer]:
    """Returns an answer to each question; it names no method unless all methods and seeds are measured.

    The list is empty if no question is measured. Methods that diverged are not compared, and neither are rows
    with changed settings, such as those of token positions.
    """
    load = cache(Table)
    all_answers = []
    for question, basis, name, column, attention in QUESTIONS:
        answer = Answer(question, basis)
        all_answers.append(answer)
        table = load(name, "mini")
        measured = _encodings(table, column, attention, runs)
        # Intervals are corrected for all methods that were tried, also for those that cost too much.
        values = {method.method: method.values for method in measured}
        differences = Differences(values, METRICS.get(basis))
        if question.startswith("Smallest cost"):
            cheap = methods_with_small_cost(load("training_speed", "mini"), attention, runs)
            measured = [method for method in measured if method.method in cheap]
        if measured:
            _compare(answer, measured, differences)
            answer.training = training(table, column)
    return all_answers if any(answer.best for answer in all_answers) else []


def _compare(answer, measured, differences):
    """Sets the best method of an answer, the methods named beside it, and the number of seeds."""
    is_falling = answer.basis.startswith("the lowest")
    answer.best, *others = sorted(measured, key=attrgetter("mean"), reverse=not is_falling)
    for method in others:
        if not differences.is_different(method.method, answer.best.method):
            answer.equal.append(method)
        elif method.method in COMPARED:
            answer.compared.append(method)
    answer.seeds = min(len(method.values) for method in measured)


def training(table: Table, column: str) -> str:
    """Returns the size of a column's models and the length of their training in words."""
    experiment = next(cell.experiment for cell in table.cells if cell.column == column)
    cfg = table.experiments[experiment].cfg
    sizes = [cfg.train.get("encoder_layers"), cfg.train.get("decoder_layers")]
    layers = " + ".join(str(number) for number in sizes if number)
    width = cfg.train.get("encoder_embed_dim") or cfg.train.get("decoder_embed_dim")
    unit = unit_of_length(cfg)
    return f"{layers} layers of width {width}, {cfg[unit]:,} {unit}"


def _encodings(table, column, attention, runs):
    """Returns the measurements of a column's methods that did not diverge; [] if a measurement is missing.

    Rows with changed settings are left out.
    """
    rows = set()
    for row in table.rows:
        if row.method in METHODS and row.attention == attention and not row.changes:
            rows.add(row.row)
    methods = []
    for cell in table.cells:
        if cell.column != column or cell.attention != attention or cell.row not in rows:
            continue
        measured = measure(cell, runs)
        if len(measured.values) < measured.planned:
            return []
        if all(map(math.isfinite, measured.values.values())):
            decimals = cell.kind.decimals_of(cell.metric)
            methods.append(Measured(canonical(cell.method), measured.values, decimals))
    return methods
