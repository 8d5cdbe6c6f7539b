"""Every run of an experiment that is in a results folder: any method, any seed, any changes.

All comes from the folders' own records: an experiment whose YAML has changed, or is gone, is shown too.
"""

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from fairseq_lrpe.experiments import entries, formats, record
from fairseq_lrpe.experiments.entries import Entry
from fairseq_lrpe.experiments.formats import number, plain
from fairseq_lrpe.experiments.record import Damaged, Record
from fairseq_lrpe.experiments.run import experiment_of, run_folders
from fairseq_lrpe.experiments.run_folder import OldLayout
from fairseq_lrpe.experiments.table import Cell
from fairseq_lrpe.methods import METHODS


@dataclass
class Row:
    """The runs of an experiment that differ in their seed alone; ``damaged`` is {seed: why}."""

    experiment: str
    attention: str
    method: str
    changes: tuple[str, ...]
    records: dict[str, Record] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return ", ".join((self.method, *self.changes))

    def state(self) -> str:
        """Returns "finished", or what is to be said of the seeds that are not."""
        states = {f"seed {seed}": run.state() for seed, run in self.records.items() if not run.finished}
        states |= {f"seed {seed}": f"damaged ({reason})" for seed, reason in self.damaged.items()}
        return "; ".join(f"{seed} {state}" for seed, state in states.items()) or "finished"

    def length(self) -> str:
        """Returns the length of its trainings, such as "400 updates"."""
        return entries.told(entries.in_order({run.length for run in self.records.values()}))

    def metrics(self) -> list[tuple[str, str]]:
        """Returns the (evaluation, metric)s on record."""
        found = {}
        for run in self.records.values():
            for evaluation, values in run.values.items():
                known = (metric for metric in run.kind.metrics if metric in values)
                found |= dict.fromkeys((evaluation, metric) for metric in known)
        return list(found)

    def entry(self, evaluation: str | None = None, metric: str | None = None) -> Entry:
        """Returns what is on record of one metric, or of the training alone."""
        kind = next((run.kind for run in self.records.values()), None)
        cell = Cell(self.attention, self.label, "", self.method)
        cell.experiment, cell.kind, cell.evaluation, cell.metric = self.experiment, kind, evaluation, metric
        return Entry(cell, self.records)


def read(experiment: str, results: Path, load: Callable = record.load) -> list[Row]:
    """Returns a row for each attention, method and changes; ValueError where no run of the experiment is.

    ``load`` gives the record of a folder.
    """
    entries.check_folder(results)
    rows = {}
    for folder in run_folders(results / experiment, Path()):
        name, *changes, seed = folder.relative_to(results / experiment).parts
        attention, _, method = name.partition("_")
        key = attention, method, tuple(map(unquote, changes))
        row, seed = rows.setdefault(key, Row(experiment, *key)), seed.removeprefix("seed-")
        try:
            row.records[seed] = load(folder)
        except Damaged as error:
            row.damaged[seed] = error.reason
        except OldLayout:
            row.damaged[seed] = "a run of an earlier version"
    if not rows:
        there = dict.fromkeys(str(experiment_of(folder, results)) for folder in run_folders(results))
        known = f"it has {', '.join(there)}" if there else "it has none at all"
        raise ValueError(f"{results} holds no run of the experiment {experiment!r}: {known}")
    place = {method: i for i, method in enumerate(METHODS)}
    return sorted(rows.values(), key=lambda x: (x.attention, place.get(x.method, len(place)), x.label))


def show(experiment: str, rows: list[Row], form: str | None) -> None:
    """Prints a line for each row."""
    if form == "csv":
        return show_csv(rows)
    formats.show(parts(experiment, rows), form)


def parts(experiment: str, rows: list[Row]):
    """Yields what is printed: lines of text, and the table."""
    columns = list(dict.fromkeys(pair for row in rows for pair in row.metrics()))
    yield f"all runs of {experiment}"
    yield "mean ± sample standard deviation of the seeds (how many, where not all)"

    def value(row, pair):
        entry = row.entry(*pair)
        measured, seeds = entry.measured(), len(row.records) + len(row.damaged)
        if measured is None:
            return "-"
        mean, deviation, n = measured
        return number(mean, deviation, entries.decimals(entry.cell)) + f" ({n})" * (n < seeds)

    header = ["attention", "method", "changes", "seeds", "length", "state"]
    yield (
        "",
        [*header, *(f"{evaluation} {metric}".replace("_", " ") for evaluation, metric in columns)],
        [
            [
                *(row.attention, row.method, ", ".join(row.changes) or "-"),
                str(len(row.records) + len(row.damaged)),
                row.length() or "-",
                row.state(),
                *(value(row, pair) for pair in columns),
            ]
            for row in rows
        ],
    )


CSV = "attention method changes evaluation metric length seeds mean std measured_seeds state".split()


def show_csv(rows):
    """Prints a line for each row and metric; one without values where nothing is measured yet."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV)
    for row in rows:
        for pair in row.metrics() or [("", "")]:
            mean, deviation, n = row.entry(*pair).measured() or ("", "", 0)
            line = [row.attention, row.method, " ".join(row.changes), *pair, row.length()]
            line += [len(row.records) + len(row.damaged), mean, deviation, n, row.state()]
            writer.writerow(map(plain, line))


def to_draw(rows: list[Row]) -> list[Entry]:
    """Returns the rows as ``curves.draw`` takes them."""
    return [row.entry() for row in rows if row.records]
