"""A table as it stands: what was measured beside what the paper says, ranks, differences to the baseline."""

import math
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scipy.stats import rankdata, spearmanr, ttest_1samp

from fairseq_lrpe.experiments import record
from fairseq_lrpe.experiments.kinds import Kind
from fairseq_lrpe.experiments.record import Record
from fairseq_lrpe.experiments.table import Cell, Table, others


@dataclass
class Entry:
    """A cell of a table and what is on record of its runs, {seed: record or None}."""

    cell: Cell
    records: dict[int, Record | None]
    parts: list["Entry"] = field(default_factory=list)  # it is made of these, without runs of its own
    baseline: "Entry | None" = None  # what it is compared with
    apart: bool = False  # whether it was trained for another length than others of its column
    damaged: int = 0  # how many of its runs cannot be read

    @property
    def key(self) -> tuple[str, str]:
        return self.cell.attention, self.cell.row

    def values(self) -> dict[int, float]:
        """Returns {seed: value} of what is measured."""
        if self.parts:
            values = [part.values() for part in self.parts]
            common = set.intersection(*map(set, values))
            join = statistics.fmean
            if self.cell.is_best:
                join = max if self.cell.better == "higher" else min
            return {seed: join(v[seed] for v in values) for seed in sorted(common)}
        found = {seed: run.values.get(self.cell.evaluation, {}) for seed, run in self.records.items() if run}
        return {seed: float(v[self.cell.metric]) for seed, v in found.items() if self.cell.metric in v}

    def lengths(self) -> tuple[tuple[int, str], ...]:
        """Returns the lengths of the trainings that were measured, such as ((400, "updates"),)."""
        values = self.values()
        found = {self.records[seed].length for seed in values if not self.parts}
        return in_order(found | {length for part in self.parts for length in part.lengths()})

    def as_long_as(self, other: "Entry") -> bool:
        """Whether all trainings of both were of one length; of what is made of parts, of each part."""
        if self.parts:
            pairs = zip(self.parts, other.parts, strict=True)
            return all(ours.as_long_as(theirs) for ours, theirs in pairs)
        return len(self.lengths()) == 1 and self.lengths() == other.lengths()

    def measured(self) -> tuple[float, float | None, int] | None:
        """Returns (mean, sample standard deviation or None, seeds) of all that count, or None."""
        values = sorted(self.values().values(), reverse=self.cell.better == "higher")
        if self.cell.drop_worst and len(values) > 2:
            values.pop()
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return (statistics.fmean(values), deviation, len(values)) if values else None

    def state(self) -> str:
        """Returns, of its seeds, "3", "2 of 3", how far the furthest unfinished one is, "damaged", or "-"."""
        done, started = len(self.values()), [run for run in self.records.values() if run]
        if done:
            planned = len((self.parts[0] if self.parts else self).records)
            return f"{done}" if done == planned else f"{done} of {planned}"
        if not started:
            return "damaged" if self.damaged else "-"
        state = max(started, key=lambda run: (run.active, run.reached)).state()
        return "not measured" if state == "finished" else state

    def counts(self) -> bool:
        """Whether there is a number that may be held against others of the column."""
        ours = self.measured()
        return ours is not None and math.isfinite(ours[0]) and not self.apart

    def comparable(self) -> bool:
        """Whether both the paper and we have a number that may be held against others."""
        return self.cell.published is not None and self.counts()

    def difference(self) -> tuple[float, tuple[float, float] | None, int] | None:
        """Returns, to the baseline, (mean, its 95% confidence interval or None, common seeds), or None."""
        if self.baseline is None or not self.as_long_as(self.baseline):
            return None
        ours, base = self.values(), self.baseline.values()
        pairs = [ours[seed] - base[seed] for seed in ours if seed in base]
        if not pairs:
            return None
        interval = ttest_1samp(pairs, 0).confidence_interval() if len(pairs) > 1 else None
        return statistics.fmean(pairs), interval and tuple(map(float, interval)), len(pairs)


def decimals(cell: Cell) -> int:
    """Returns how many decimals of a cell's metric people compare."""
    return (cell.kind or Kind).decimals.get(cell.metric, 2)


def read(table: Table, results: Path) -> list[Entry]:
    """Returns the table's entries in its order; ValueError where there is no run to show."""
    check_folder(results)
    found = standing(table, results)
    if not any(run for entry in found for run in entry.records.values()):
        raise ValueError(f"{results} holds no run of the table {table.name!r}, {_hint(table, results)}")
    return found


def standing(table: Table, results: Path, read: Callable = record.read) -> list[Entry]:
    """Returns the table's entries in its order, with what ``read`` gives of each run's folder."""
    records = {}
    for cell in table.cells:
        for run in cell.runs:
            if run not in records:
                records[run] = read(run.folder(results))
    entries = {id(cell): Entry(cell, {run.seed: records[run] for run in cell.runs}) for cell in table.cells}
    for entry in entries.values():
        there = (run.folder(results) / "run.json" for run in entry.cell.runs if records[run] is None)
        entry.damaged = sum(path.exists() for path in there)
        entry.parts = [entries[id(part)] for part in entry.cell.parts]
        base = table.baseline(entry.cell)
        entry.baseline = base and entries[id(base)]
    for column in sorted(table.columns, key=lambda name: bool(others(table.columns[name]))):  # parts first
        set_apart([entry for entry in entries.values() if entry.cell.column == column])
    return list(entries.values())


def check_folder(results: Path) -> None:
    """Raises ValueError where there is no such folder."""
    if not results.is_dir():
        raise ValueError(f"the results folder {results} does not exist: give the one that runs are in")


def set_apart(column: list[Entry]) -> None:
    """Marks the entries of a column that were not trained for the length that most of them were."""
    lengths = Counter(entry.lengths() for entry in column if len(entry.lengths()) == 1)
    usual = lengths.most_common(1)[0][0] if lengths else None
    for entry in column:
        entry.apart = bool(entry.lengths()) and entry.lengths() != usual
        if entry.parts:  # whose trainings may be of several lengths
            entry.apart = any(part.apart for part in entry.parts)


def in_order(lengths: set[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Returns lengths of trainings, the shortest first."""
    return tuple(sorted(lengths, key=lambda length: (length[1], length[0] or 0)))


def told(lengths: tuple[tuple[int, str], ...]) -> str:
    """Returns lengths in words, such as "60 or 100 updates"."""
    units = {unit: [str(number) for number, of in lengths if of == unit] for _, unit in lengths}
    return ", ".join(
        f"{' or '.join(numbers)} {unit.removesuffix('s') if numbers == ['1'] else unit}"
        for unit, numbers in units.items()
    )


def _hint(table, results):
    """What a person may have meant instead."""
    first = f"the first would be {results / str(table.runs()[0])}"
    small = (column.mini for column in table.settings.columns.values())
    small = [table.settings.mini, *small] if table.scale == "full" else []
    there = next((name for name in small if name and (results / name).is_dir()), None)
    return f"{first}; for the runs of {there} give --scale mini" if there else first


def ranks(entries: list[Entry]) -> dict:
    """Returns {(attention, column): ({row: (the paper's rank, ours)}, Spearman's ρ or None)}.

    Only of groups with two rows or more: one alone has no rank.
    """
    groups = {}
    for entry in entries:
        if entry.comparable():
            groups.setdefault((entry.cell.attention, entry.cell.column), []).append(entry)
    found = {}
    for key, group in groups.items():
        if len(group) < 2:
            continue
        sign = 1 if group[0].cell.better == "lower" else -1
        paper, ours = (
            [sign * x[0] for x in xs]
            for xs in zip(*((e.cell.published, e.measured()) for e in group), strict=True)
        )
        # Of two methods the correlation is 1 or -1 whatever they are; of equal values it is not defined.
        known = len(group) > 2 and len(set(paper)) > 1 and len(set(ours)) > 1
        rho = float(spearmanr(paper, ours).statistic) if known else None
        pairs = zip(rankdata(paper), rankdata(ours), strict=True)
        found[key] = {entry.cell.row: pair for entry, pair in zip(group, pairs, strict=True)}, rho
    return found


def best(entries: list[Entry]) -> tuple[dict, dict]:
    """Returns {(attention, column): value} of what is published and of ours, where they differ."""
    theirs, ours = {}, {}
    for entry in entries:
        group = entry.cell.attention, entry.cell.column
        if entry.cell.published is not None:
            theirs.setdefault(group, []).append((entry.cell.published[0], entry.cell.better))
        if entry.counts():
            ours.setdefault(group, []).append((entry.measured()[0], entry.cell.better))
    return tuple(
        {
            group: (min if values[0][1] == "lower" else max)(value for value, _ in values)
            for group, values in found.items()
            if len({value for value, _ in values}) > 1
        }
        for found in (theirs, ours)
    )
