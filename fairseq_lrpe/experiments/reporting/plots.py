"""Plots of validation curves."""

import math
import sys
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

from fairseq_lrpe.experiments.definition.kinds.base import Curve
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.cells import measuring_runs
from fairseq_lrpe.experiments.reporting.plot_data import visible_range
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.style import LINE_STYLES, line_styles
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import save_figure
from fairseq_lrpe.utils.numbers import format_number

FEW_ROWS = 10
"""Number of rows of a panel up to which a plot is small, and readable in the width of a page."""
MIN_VALUE = 5e-4
"""Lower limit of drawn values, since a logarithmic axis has no 0.000."""


@dataclass
class Line:
    """A line of a plot: its name in the legend, and the records of its seeds."""

    experiment: str
    attention: str
    row: str
    method: str
    records: list[RunRecord]

    @property
    def curve(self) -> Curve | None:
        return self.records[0].kind.curve

    @property
    def last(self) -> float:
        return float(self.points["mean"].iloc[-1])

    @cached_property
    def points(self) -> pd.DataFrame:
        """DataFrame of the mean, min, max and count over the seeds, indexed by the number of updates.

        It contains the updates for which all seeds have a finite value. If at least one of the runs has been
        evaluated, runs that have not been evaluated are ignored.
        """
        validated = [record for record in self.records if record.curve]
        drawn = [record for record in validated if record.measured] or validated
        if len(drawn) == 1:  # the general way takes many times as long
            values = pd.Series(drawn[0].curve, dtype=float).rename_axis("updates").sort_index()
            points = pd.DataFrame({"mean": values, "min": values, "max": values, "count": 1})
        else:
            values = []
            for record in drawn:
                values += record.curve.items()
            values = pd.DataFrame(values, columns=["updates", "value"]).astype({"value": float})
            points = values.groupby("updates")["value"].agg(["mean", "min", "max", "count"])
        points = points[(points["count"] == len(drawn)) & np.isfinite(points["mean"])]
        return points.assign(mean=points["mean"].clip(lower=MIN_VALUE))


def plot_table(table: Table, records: Mapping[Run, RunRecord], path: Path, methods: Collection[str]) -> None:
    """Plots the validation curves of the table's rows with these methods to the file ``path``."""
    lines = [line for line in table_lines(table, records) if line.method in methods]
    plot_curves(table_name(table), lines, path)


def table_name(table: Table) -> str:
    """Returns the arguments of ``lrpe table`` for a table, without the folder of the data."""
    words = [table.name]
    if table.scale != "full":
        words.append(f"--scale {table.scale}")
    for override in table.overrides:
        if not override.startswith("data="):
            words.append(override)
    return " ".join(words)


def table_lines(table: Table, records: Mapping[Run, RunRecord]) -> list[Line]:
    first_runs = {}
    lines = {}
    for cell in table.cells:
        started = []
        for run in measuring_runs(cell, records):
            if run in records:
                started.append(records[run])
        line = Line(cell.experiment, cell.attention, cell.row, cell.method or "", started)
        if len(line.points):
            key = line.experiment, line.attention, line.row
            if first_runs.setdefault(key, cell.runs) != cell.runs:  # the runs have changes of the column
                line.row = f"{cell.row}, {cell.column}"
            lines[line.experiment, line.attention, line.row] = line
    return list(lines.values())


def experiment_lines(records: Collection[RunRecord]) -> list[Line]:
    """Returns a line for all seeds of each run of an experiment, named after its method and changes."""
    lines = {}
    for record in records:
        if record.problem is None:
            run = record.run
            name = ", ".join(text for text in (run.method, record.changes) if text)
            line = Line(run.experiment, run.attention, name, run.method, [])
            lines.setdefault(record.order, line).records.append(record)
    return [lines[key] for key in sorted(lines)]


def plot_curves(title: str, lines: list[Line], path: Path) -> Figure:
    """Plots validation curves to the file ``path``, in one panel per experiment and attention.

    A line shows the mean over the seeds of a row, and the band around it shows the lowest and highest values.
    """
    panels = {}
    for line in lines:
        if len(line.points):
            panels.setdefault((line.experiment, line.attention), []).append(line)
    if not panels:
        raise UserError("no run has validated yet: there is nothing to plot")
    across = min(len(panels), 3)
    legend_height = max(_legend_height(drawn) for drawn in panels.values())
    is_small = max(map(len, panels.values())) <= FEW_ROWS
    width, height = (5.5, 3.5) if is_small else (8.5, 5)
    figure, axes = grid(len(panels), across, (width * across, max(height, 1 + 0.18 * legend_height)))
    for ax, drawn in zip(axes, panels.values(), strict=True):
        _draw_curves(ax, drawn)
    figure.suptitle(title)
    save_figure(figure, path, dpi=150)
    print(f"{path} shows the validation curves.", file=sys.stderr)
    return figure


def _legend_height(lines):
    """Returns the height of a legend in lines of text; the space between entries is 0.2 lines."""
    height = 0
    for line in lines:
        height += wrap(line.row).count("\n") + 1.2
    return height


def grid(count: int, columns: int, size: tuple[float, float], **options) -> tuple[Figure, np.ndarray]:
    """Returns a figure and its ``count`` panels, with ``columns`` panels in a row.

    ``size`` is the width of the figure and the height of a row of panels, in inches.
    """
    rows = math.ceil(count / columns)
    width, height = size
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).flat
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def wrap(row: str, notes: Collection[str] = ()) -> str:
    """Returns the name of a row, with notes in parentheses, in lines of at most 32 characters."""
    text = row + (f" ({', '.join(notes)})" if notes else "")
    whole_words = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, 32, subsequent_indent="    ", **whole_words)


def _draw_curves(ax, drawn):
    """Draws lines in a panel, sorted by their last values, the best one first."""
    curve = drawn[0].curve
    styles = line_styles(drawn)
    is_falling = curve.better == "lower"
    end = max(int(line.points.index[-1]) for line in drawn)
    updates, (bottom, top) = visible_range([line.points for line in drawn], curve)
    for i, line in enumerate(sorted(drawn, key=attrgetter("last"), reverse=not is_falling)):
        points = line.points
        color, marker = styles[line.attention, line.row]
        reached = int(points.index[-1])
        notes = []
        if reached < end:
            notes.append(f"at {reached:,}")
        if line.last > top:
            notes.append("above")
        ax.plot(
            points.index,
            points["mean"],
            color=color,
            linestyle=LINE_STYLES[line.attention],
            marker=marker,
            markersize=6,
            # Long lines have few markers, at different updates for different rows.
            markevery=1 if len(points) <= 12 else (i % 4 * (len(points) // 32), len(points) // 8),
            linewidth=1.5,
            label=f"{format_number(line.last, curve.decimals)}  {wrap(line.row, notes)}",
        )
        if points["count"].iloc[0] > 1:
            ax.fill_between(points.index, points["min"], points["max"], color=color, alpha=0.15, linewidth=0)
    ax.set(xlim=updates, xlabel="updates", ylabel=curve.label)
    if is_falling:
        ax.set(ylim=(bottom, top), yscale="log")
    steps = [1, 2, 2.5, 5, 10]
    is_wide = is_falling and top > 10 * bottom
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if is_wide else MaxNLocator(nbins=14, steps=steps))
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=steps, integer=True))
    finish(ax, f"{line.experiment}, {line.attention} attention")


def finish(ax, title: str) -> None:
    """Adds the title, the grid and the legend of a panel."""
    ax.set_title(title, fontsize="medium")
    ax.grid(alpha=0.25)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="last  method", handlelength=3.5)
