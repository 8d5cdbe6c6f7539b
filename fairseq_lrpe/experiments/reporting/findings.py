"""The page of findings: questions that people have, answered from recorded runs.

Every number is computed from the records, so that the page cannot differ from them. A question that the
records do not answer is left out.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting import lrpe_and_rope
from fairseq_lrpe.experiments.reporting.aggregate import rank_correlations
from fairseq_lrpe.experiments.reporting.answers import training
from fairseq_lrpe.experiments.reporting.encoding_descriptions import TOKEN_POSITIONS
from fairseq_lrpe.experiments.reporting.measured_columns import (
    MEMORY,
    SPEED,
    MeasuredColumn,
    listed,
    methods_with_small_cost,
)
from fairseq_lrpe.experiments.reporting.measured_tables import MeasuredTable
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.settings import machine
from fairseq_lrpe.methods import ATTENTIONS

LENGTHS = {"at the training length": "1 ×", "at 16 times the training length": "16 ×"}
"""{words: column of the table extrapolation}"""
GATED = {"FoX with RoPE": "RoPE", "LRPE-d": "LRPE (Type1)", "ALiBi": "NoPE"}
"""{row: the row to which its gate or decay is added}"""
SMALL_COST = f"at least {SPEED:g} times the speed and at most {MEMORY:g} times the memory of NoPE"
SIMILAR = 0.5
"""Smallest rank correlation at which an order counts as similar to the published one."""
GUESSED = 5
"""Highest percentage of recalled values, of 16 pairs, that counts as guessing, which is right in 3%."""
LEAST_RANKED = 5
"""Smallest number of rows of a published column whose rank correlation counts."""


class Figure(NamedTuple):
    """A figure beside the page."""

    description: str
    name: str


@dataclass
class Finding:
    """A question, its answer, and the table that has the numbers."""

    question: str
    sentences: list[str]
    table: str | None = None
    figure: Figure | None = None


class Findings:
    """Answers to questions, computed from recorded runs.

    Args:
        runs: {run: record} of recorded runs.
        measured: {name of a table: {scale: measured table}}.
    """

    def __init__(self, runs: Mapping[Run, RunRecord], measured: Mapping[str, Mapping[str, MeasuredTable]]):
        self.runs = runs
        self.tables = measured
        self.used: dict[str, Table] = {}

    def all(self) -> list[Finding]:
        """Returns the answers to the questions that have one."""
        questions = {
            self.best_encodings: "extrapolation",
            self.long_texts: "extrapolation",
            self.lrpe_and_rope: "extrapolation",
            self.gates_and_decays: "extrapolation",
            self.recall: "recall",
            self.needle: "needle",
            self.cost: "training_speed",
            self.ranks: None,
            self.scaling: "rope_scaling",
            self.absolute_positions: "extrapolation",
            self.not_measured: None,
        }
        found = []
        for question, table in questions.items():
            if table is None or self.is_measured(table):
                finding = question()
                if finding.sentences:
                    found.append(finding)
        return found

    def is_measured(self, table: str) -> bool:
        """Returns whether runs of a table at scale mini are recorded."""
        scales = self.tables.get(table, {})
        return "mini" in scales and bool(scales["mini"].recorded)

    def column(self, table: str, name: str, attention: str, **options: bool) -> MeasuredColumn:
        """Returns a column of a table at scale mini; ``options`` are those of ``MeasuredColumn``."""
        here = self.tables[table]["mini"].table
        column = MeasuredColumn(here, name, attention, self.runs, **options)
        if column.rows:
            self.used[table] = here
        return column

    def best_encodings(self) -> Finding:
        sentences = []
        for attention in ATTENTIONS:
            column = self.column("extrapolation", "1 ×", attention)
            if column.rows:
                text = f"In {attention} attention, {column.describe_best('perplexity')}"
                cheap = self._describe_cheap(column, attention)
                guessing = self._describe_guessing(column, attention)
                sentences.append(" ".join(filter(None, (text, cheap, guessing))))
        question = "Which encoding suits linear attention, and which softmax attention?"
        return Finding(question, sentences, "extrapolation")

    def _describe_cheap(self, column, attention):
        """Returns a sentence about the best row of a column whose training step costs little, or ""."""
        methods = self._methods_with_small_cost(attention)
        cheap = [row for row, method in column.rows.items() if method in methods]
        if not cheap:
            return ""
        best = min(cheap, key=column.mean)
        return f"Of those with {SMALL_COST}, {best} has the lowest, {column.text(best)}."

    def _describe_guessing(self, column, attention):
        """Returns a sentence about the best rows of a column that do not learn to recall, or ""."""
        if not self.is_measured("recall"):
            return ""
        recall = self.column("recall", "16 pairs", attention)
        guessing = [row for row in column.best_rows() if row in recall.rows and recall.mean(row) <= GUESSED]
        if not guessing:
            return ""
        return f"Of the best, {listed(guessing)} recall at most {GUESSED}% of 16 pairs (guessing: 3%)."

    def _methods_with_small_cost(self, attention):
        if not self.is_measured("training_speed"):
            return set()
        return methods_with_small_cost(self.tables["training_speed"]["mini"].table, attention, self.runs)

    def long_texts(self) -> Finding:
        sentences = []
        for attention in ATTENTIONS:
            column = self.column("extrapolation", "16 ×", attention)
            if column.rows:
                best = column.describe_best("perplexity")
                sentences.append(f"At 16 times the training length, in {attention} attention, {best}")
        figure = Figure("perplexity over the length of blocks", "extrapolation.png")
        return Finding("Which encoding suits long texts?", sentences, "extrapolation", figure)

    def lrpe_and_rope(self) -> Finding:
        sentences = []
        for attention in ATTENTIONS:
            column = self.column("extrapolation", "1 ×", attention)
            sentences += lrpe_and_rope.sentences_of_column(column, attention)
        sentences += lrpe_and_rope.sentences_of_papers(self.tables, self.runs)
        return Finding("Does LRPE beat RoPE?", sentences, "extrapolation")

    def gates_and_decays(self) -> Finding:
        sentences = []
        for attention, (words, name) in product(ATTENTIONS, LENGTHS.items()):
            column = self.column("extrapolation", name, attention)
            changes = []
            for row, base in GATED.items():
                if row in column.rows and base in column.rows:
                    note = "" if column.is_different(row, base) else ", cannot be told apart"
                    changes.append(f"{row} has {column.text(row)} ({base}: {column.text(base)}{note})")
            if changes:
                sentences.append(f"In {attention} attention, {words}, {listed(changes)}.")
        return Finding("What does a gate or a decay bring to the perplexity?", sentences, "extrapolation")

    def recall(self) -> Finding:
        sentences = self._highest_accuracies("recall", "32 pairs", "With 32 pairs of a key and a value")
        return Finding("Which methods recall what they have read?", sentences, "recall")

    def needle(self) -> Finding:
        sentences = self._highest_accuracies("needle", "16 ×", "At 16 times the training length")
        return Finding("Which methods find a number in a long text?", sentences, "needle")

    def _highest_accuracies(self, table, name, words):
        """Returns a sentence for each attention about the methods with the highest accuracy of a column."""
        sentences = []
        for attention in ATTENTIONS:
            column = self.column(table, name, attention)
            if column.rows:
                best = column.describe_best("accuracy in percent")
                sentences.append(f"{words}, in {attention} attention, {best}")
        return sentences

    def cost(self) -> Finding:
        sentences = []
        for attention in ATTENTIONS:
            speed = self.column("training_speed", "speed at 2,048", attention)
            if speed.rows:
                cheap = self._methods_with_small_cost(attention)
                slowest = min(speed.rows, key=speed.mean)
                times = 1 / speed.mean(slowest)
                seeds = len(speed.values[slowest])
                sentences.append(
                    f"In {attention} attention, {len(cheap)} of {len(speed.rows)} methods have {SMALL_COST} "
                    f"in a training step of 2,048 tokens ({seeds} seed{'s' * (seeds != 1)}). The slowest, "
                    f"{slowest}, takes {times:.0f} times as long as NoPE. RoPE has {speed.text('RoPE')} "
                    f"times the speed of NoPE, LRPE (Type1) {speed.text('LRPE (Type1)')}."
                )
        return Finding("What does an encoding cost?", sentences, "training_speed")

    def ranks(self) -> Finding:
        correlations = {}
        for name, scales in self.tables.items():
            if "mini" in scales and scales["mini"].recorded:
                found = rank_correlations(scales["mini"].summary, LEAST_RANKED)
                for (attention, column), value in found.items():
                    if math.isfinite(value):
                        place = f"[{name}](results/{name}.md), {heading(column)}"
                        correlations.setdefault(attention, {})[place] = value
        sentences = []
        for attention, values in correlations.items():
            high = max(values, key=values.get)
            low = min(values, key=values.get)
            repeated = sum(value >= SIMILAR for value in values.values())
            median = statistics.median(values.values())
            sentences.append(
                f"In {attention} attention, Spearman's ρ with the published order is at least {SIMILAR} in "
                f"{repeated} of {len(values)} columns of {LEAST_RANKED} or more methods, and the median is "
                f"{median:.2f}. The highest is {values[high]:.2f} ({high}), the lowest "
                f"{values[low]:.2f} ({low})."
            )
        figure = Figure("validation perplexity over updates of TMLR's Table 2", "tmlr_table2_mini.png")
        question = "Do the ranks of the papers' tables repeat at this scale?"
        return Finding(question, sentences, "tmlr_table2", figure)

    def scaling(self) -> Finding:
        sentences = []
        for attention in ATTENTIONS:
            texts = []
            for length in ("2 ×", "4 ×"):
                without = self.column("rope_scaling", length, attention)
                scaled = self.column("rope_scaling", f"{length} yarn", attention)
                if "RoPE" in without.rows and "RoPE" in scaled.rows:
                    texts.append(f"{scaled.text('RoPE')} instead of {without.text('RoPE')} at {length}")
            if texts:
                own = self.column("rope_scaling", "1 ×", attention).text("RoPE")
                text = f"With `yarn`, RoPE in {attention} attention has a perplexity of {listed(texts)}"
                sentences.append(f"{text} the training length; at this length, it has {own}.")
        return Finding("Does the scaling of rotations help?", sentences, "rope_scaling")

    def absolute_positions(self) -> Finding:
        sentences = []
        for words, name in LENGTHS.items():
            column = self.column("extrapolation", name, "linear", with_changes=True)
            absolute = [row for row in column.rows if column.kinds[row] in (TOKEN_POSITIONS, "absolute")]
            if not absolute or "NoPE" not in column.rows:
                continue
            better = []
            for row in sorted(absolute, key=column.mean):
                if column.is_better(row, "NoPE"):
                    better.append(f"{row} ({column.text(row)})")
            sentences.append(
                f"In linear attention, {words}, {len(better)} of {len(absolute)} kinds of token positions "
                f"are better than NoPE ({column.text('NoPE')}){': ' * bool(better)}{listed(better)}."
            )
        return Finding("Which absolute positions help linear attention?", sentences, "extrapolation")

    def not_measured(self) -> Finding:
        planned = set()
        for scales in self.tables.values():
            if "full" in scales and scales["full"].table.source:
                planned |= scales["full"].planned
        recorded = len(planned & self.runs.keys())
        width = 0
        updates = 0
        gpus = 0
        for record in self.runs.values():
            config = record.settings["config"]
            for part in ("encoder", "decoder"):
                width = max(width, config.get(f"train.{part}_embed_dim") or 0)
            updates = max(updates, config.get("updates") or 0)
            gpus += not machine(record.settings).startswith("CPU")
        sentences = [
            f"{recorded:,} of the {len(planned):,} runs of the papers' tables at their full size are "
            "recorded.",
            f"The widest of the {len(self.runs):,} recorded models has width {width:,}, the longest training "
            f"{updates:,} updates, and {gpus:,} of them were trained on GPUs.",
        ]
        return Finding("What has nobody measured yet?", sentences)

    def describe_models(self) -> Iterator[str]:
        """Yields the tables that answers use, with the size of their models and the number of seeds."""
        for name, table in self.used.items():
            if name != "training_speed":
                column, *_ = table.columns
                seeds = sorted({run.seed for run in table.runs()})
                yield f"[{name}](results/{name}.md): {training(table, column)}, {len(seeds)} seeds"
