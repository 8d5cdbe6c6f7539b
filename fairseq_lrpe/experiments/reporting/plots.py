"""Plots of validation curves, and plots of measured numbers over a table's columns."""

import math
import sys
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

from fairseq_lrpe.experiments.definition.kinds.base import Curve
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.cells import measuring_runs
from fairseq_lrpe.experiments.reporting.plot_data import column_lines, needs_log_scale, visible_range
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.style import LINE_STYLES, line_styles
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import save_figure
from fairseq_lrpe.utils.numbers import format_number

MANY_ROWS = 20
"""Number of rows of an attention above which ``plot_columns`` separates kinds of encodings."""
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


def plot_table(table: Table, records: Mapping[Run, RunRecord], path: Path) -> None:
    plot_curves(table_name(table), table_lines(table, records), path)


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
    figure, axes = grid(len(panels), across, (8.5 * across, max(5, 1 + 0.18 * legend_height)))
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
    ax.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=steps, integer=True))
    _finish(ax, f"{line.experiment}, {line.attention} attention")


def _finish(ax, title):
    ax.set_title(title)
    ax.grid(alpha=0.25)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="last  method", handlelength=3.5)


def plot_columns(
    title: str, summary: pd.DataFrame, path: Path, kinds: Mapping = MappingProxyType({})
) -> Figure:
    """Plots a table's measured numbers over its columns to the file ``path``, in one panel per attention.

    If an attention has more than ``MANY_ROWS`` rows, each kind of encodings has its own panels, in which the
    rows of other kinds are grey. ``kinds`` maps (attention, row) to a kind.
    """
    cells, columns = column_lines(summary)
    if cells.empty:
        raise UserError("nothing has been measured yet: there is nothing to plot")
    if len(columns) == 1:
        raise UserError(f"the only column to plot is {columns[0]}: lines over columns need at least two")
    attentions = list(cells["attention"].unique())
    cells = cells.assign(kind=_kinds_of_panels(cells, kinds))
    sizes = cells.groupby(["kind", "attention"])["row"].nunique().groupby("kind").max()
    heights = (0.24 * sizes).clip(lower=4 if len(sizes) > 1 else 5).tolist()
    figure = Figure(figsize=(8 * len(attentions), sum(heights)), layout="constrained")
    shape = {"squeeze": False, "sharey": True, "height_ratios": heights}
    axes = figure.subplots(len(sizes), len(attentions), **shape)
    styles = line_styles(summary.itertuples())
    for (kind, attention), ax in zip(product(sizes.index, attentions), axes.flat, strict=True):
        here = cells[cells["attention"] == attention]
        if not (here["kind"] == kind).any():
            ax.remove()
            continue
        for row, line in here.groupby("row", sort=False):
            style = styles[attention, row] if line["kind"].iloc[0] == kind else None
            _draw_row(ax, row, line, columns, style)
        if needs_log_scale(cells["mean"]):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("{x:g}")
        if kind:
            near = cells["mean"][cells["mean"] <= 4 * cells["mean"].median()]
            ax.set_ylim(0.95 * near.min(), 1.05 * near.max())
        ax.set_xticks(range(len(columns)), [heading(column) for column in columns])
        margin = 0.05 * len(columns)
        ax.set_xlim(-margin, len(columns) - 1 + margin)  # also where a row lacks the last columns
        ax.set_ylabel(heading(cells["metric"].iloc[0]))
        ax.yaxis.set_tick_params(which="both", labelleft=True)  # the panel on the left may be missing
        _finish(ax, f"{kind + ': ' if kind else ''}{attention} attention")
    figure.suptitle(title)
    save_figure(figure, path, dpi=150 if len(sizes) == 1 else 72)
    print(f"{path} shows the measured numbers by column.", file=sys.stderr)
    return figure


def _kinds_of_panels(cells, kinds):
    """Returns the kind of each cell's panel, or "" unless an attention has more than ``MANY_ROWS`` rows."""
    rows = cells.groupby("attention")["row"].nunique()
    if rows.max() <= MANY_ROWS:
        return ""
    names = zip(cells["attention"], cells["row"], strict=True)
    return [kinds.get(name, "") for name in names]


def _draw_row(ax, row, line, columns, style):
    """Draws a row over its columns with a style (color, marker), or as a thin grey line if it is None."""
    last = line.iloc[-1]
    places = [columns.index(column) for column in line["column"]]
    if style is None:
        ax.plot(places, line["mean"], color="#d0d0d0", linewidth=0.7, zorder=0)
        return
    color, marker = style
    ax.errorbar(
        places,
        line["mean"],
        line["std"].fillna(0.0),
        color=color,
        marker=marker,
        linestyle=LINE_STYLES[line["attention"].iloc[0]],
        capsize=3,
        label=f"{format_number(last['mean'], last['decimals'])}  {wrap(row)}",
    )
