"""A column of a table in words: its best rows, and rows that cannot be told apart."""

import math
import statistics
from collections.abc import Mapping, Sequence

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.cells import measure
from fairseq_lrpe.experiments.reporting.differences import LEAST_SEEDS, Differences
from fairseq_lrpe.experiments.reporting.encoding_descriptions import row_kind
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.methods import METHODS, canonical
from fairseq_lrpe.utils.numbers import format_number

NAMED = 7
"""Number of rows that a sentence lists."""
SPEED = 0.9
"""Least speed of a training step at 2,048 tokens, relative to NoPE's, at which the cost counts as small."""
MEMORY = 1.1
"""Most memory of a training step at 2,048 tokens, relative to NoPE's, at which the cost counts as small."""
FOR_COMPARISON = ("NoPE", "RoPE")


class MeasuredColumn:
    """The rows of a column and attention of a table that all seeds have measured without diverging.

    Args:
        table: the table.
        name: name of the column.
        attention: type of attention.
        runs: {run: record} of the recorded runs.
        with_changes: whether rows with changed settings, such as those of token positions, count.
    """

    def __init__(
        self,
        table: Table,
        name: str,
        attention: str,
        runs: Mapping[Run, RunRecord],
        with_changes: bool = False,
    ):
        self.kinds = {}
        changed = set()
        for row in table.rows:
            if row.attention == attention:
                self.kinds[row.row] = row_kind(row)
                if row.changes:
                    changed.add(row.row)
        self.rows: dict[str, str] = {}  # {row: method}
        self.values = {}
        self.metric = None
        self.is_falling = True
        for cell in table.cells:
            if (cell.column, cell.attention) != (name, attention) or cell.method not in METHODS:
                continue
            measured = measure(cell, runs)
            values = list(measured.values.values())
            is_complete = len(values) == measured.planned and all(map(math.isfinite, values))
            if is_complete and (with_changes or cell.row not in changed):
                self.rows[cell.row] = canonical(cell.method)
                self.values[cell.row] = measured.values
                self.metric = cell.metric
                self.is_falling = cell.better == "lower"
                self.decimals = cell.kind.decimals_of(cell.metric)
        self.differences = Differences(self.values, self.metric)

    @property
    def has_intervals(self) -> bool:
        return all(len(values) >= LEAST_SEEDS for values in self.values.values())

    def mean(self, row: str) -> float:
        return statistics.fmean(self.values[row].values())

    def text(self, row: str) -> str:
        """Returns the mean of a row as text, or "no number"."""
        return format_number(self.mean(row), self.decimals) if row in self.rows else "no number"

    def is_better(self, row: str, other: str) -> bool:
        """Returns whether a row is better than another one and their simultaneous interval excludes 0."""
        is_lower = self.mean(row) < self.mean(other)
        return is_lower == self.is_falling and self.is_different(row, other)

    def difference(self, row: str, other: str) -> str:
        """Returns the difference of two rows with its interval, such as "-1.75 [-2.10, -1.40]"."""
        found = self.differences.between(row, other)
        text = f"{found['difference']:+.{self.decimals}f}"
        if found["common_seeds"] < LEAST_SEEDS:
            return text
        return f"{text} [{found['low']:+.{self.decimals}f}, {found['high']:+.{self.decimals}f}]"

    def is_different(self, row: str, other: str) -> bool:
        return self.differences.is_different(row, other)

    def ordered(self) -> list[str]:
        """Returns the rows in the order of their means, the best one first."""
        return sorted(self.rows, key=self.mean, reverse=not self.is_falling)

    def best_rows(self) -> list[str]:
        """Returns the best row, and in the order of their means those that cannot be told apart from it."""
        ordered = self.ordered()
        return [row for row in ordered if row == ordered[0] or not self.is_different(row, ordered[0])]

    def describe_best(self, what: str) -> str:
        """Returns a sentence without its beginning that names the best row and those equal to it.

        ``what`` is the measured number in words, such as "perplexity".
        """
        best, *equal = self.best_rows()
        extreme = "lowest" if self.is_falling else "highest"
        text = f"{best} has the {extreme} {what} of {len(self.rows)} methods, {self.text(best)}"
        if equal and len(equal) == len(self.rows) - 1:
            text += "; no other one can be told apart from it"
        elif equal:
            more = len(equal) - NAMED
            names = equal[:NAMED] + ([f"{more} more"] if more > 0 else [])
            text += f"; {listed(names)} cannot be told apart from it"
        compared = [f"{row}: {self.text(row)}" for row in FOR_COMPARISON if row in self.rows]
        return f"{text} ({', '.join(compared)})." if compared else f"{text}."


def methods_with_small_cost(table: Table, attention: str, runs: Mapping[Run, RunRecord]) -> set[str]:
    """Returns the methods whose training step takes little more time and memory than that of NoPE.

    Args:
        table: the table training_speed.
        attention: type of attention.
        runs: {run: record} of the recorded runs.
    """
    speed = MeasuredColumn(table, "speed at 2,048", attention, runs)
    memory = MeasuredColumn(table, "memory at 2,048", attention, runs)
    cheap = set()
    for row in speed.rows.keys() & memory.rows.keys():
        if speed.mean(row) >= SPEED and memory.mean(row) <= MEMORY:
            cheap.add(speed.rows[row])
    return cheap


def listed(texts: Sequence[str]) -> str:
    """Returns texts as an enumeration, such as "a, b and c"."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
