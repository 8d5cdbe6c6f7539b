"""Plots of a table's measured numbers over its columns."""

import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from matplotlib.figure import Figure

from fairseq_lrpe.experiments.reporting.plot_data import column_lines, needs_log_scale
from fairseq_lrpe.experiments.reporting.plots import FEW_ROWS, finish, wrap
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.style import LINE_STYLES, line_styles
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import save_figure
from fairseq_lrpe.utils.numbers import format_number

MANY_ROWS = 20
"""Number of rows of an attention above which ``plot_columns`` separates kinds of encodings."""


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
    is_small = sizes.max() <= FEW_ROWS
    width = 5.5 if is_small else 8
    heights = (0.24 * sizes).clip(lower=3.5 if is_small else 5 if len(sizes) == 1 else 4).tolist()
    figure = Figure(figsize=(width * len(attentions), sum(heights)), layout="constrained")
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
        finish(ax, f"{kind + ': ' if kind else ''}{attention} attention")
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
