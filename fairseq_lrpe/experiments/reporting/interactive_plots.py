"""Interactive versions of the plots in ``plots.py``, drawn by plotly on an HTML page."""

import math
from dataclasses import replace
from html import escape
from operator import itemgetter

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.io import to_html

from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.plot_data import column_lines, needs_log_scale, visible_range
from fairseq_lrpe.experiments.reporting.plots import Line, wrap
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.style import LINE_STYLES, line_styles
from fairseq_lrpe.utils.numbers import format_number

SYMBOLS = dict(zip(
    "os^vDPX*phd<>8H",
    "circle square triangle-up triangle-down diamond cross x star pentagon hexagon diamond-tall "
    "triangle-left triangle-right octagon hexagon2".split(),
    strict=True,
))  # fmt: skip
"""{marker of matplotlib: symbol of plotly}"""
WIDTH = 1.5  # width of lines in pixels
COMMON_STYLE = {"line": {"width": WIDTH}, "marker": {"size": 8, "maxdisplayed": 12}}
"""Settings of plotly that all lines share."""

LAYOUT = {
    "template": "none",
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "height": 520,
    "margin": {"l": 8, "r": 12, "t": 34, "b": 8},
    "showlegend": True,  # otherwise, plotly omits the legend of a single line
    "legend": {
        "orientation": "h",
        "yref": "container",
        "y": 0,
        "yanchor": "bottom",
        "x": 0,
        "tracegroupgap": 0,
    },
}
AXIS = {
    "gridcolor": "#e6e6e6",
    "zeroline": False,
    "automargin": True,
    "linecolor": "#999",
    "ticks": "outside",
}
LOG_AXIS = {"type": "log", "tickformat": ",~r", "nticks": 12}
TOUCH_SCRIPT = "if (matchMedia('(pointer: coarse)').matches) Plotly.relayout('{plot_id}', {dragmode: false});"
"""JavaScript that disables zooming by dragging on touch screens."""
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,  # a button that would upload the data
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}


def curve_figure(lines: list[Line], count: int | None = None) -> go.Figure | None:
    """Returns a plot of validation curves with one line per run, or None if no run has two points.

    Args:
        lines: the curves, each with one or more seeds.
        count: maximum number of points of a run (default: all).
    """
    styles = line_styles(lines)
    drawn = []
    curves = []
    for line in lines:
        seeds = _seeds(line)
        if seeds:
            best = min if line.curve.better == "lower" else max
            drawn.append((best(seed.last for seed in seeds), seeds))
            for seed in seeds:
                curves.append(seed.points)
    if all(len(points) == 1 for points in curves):
        return None
    curve = lines[0].curve
    traces = []
    for last, seeds in sorted(drawn, key=itemgetter(0), reverse=curve.better != "lower"):
        color, marker = styles[seeds[0].attention, seeds[0].row]
        for seed in seeds:
            trace = _trace(seed, count) | trace_style(color, marker, seed.attention)
            if seed is seeds[0]:
                number = format_number(last, curve.decimals)
                trace["name"] = legend_text(number, f"{seed.attention} {seed.row}")
            else:
                trace["showlegend"] = False
            traces.append(trace)
    figure = go.Figure({"data": traces, "layout": LAYOUT}, skip_invalid=False)
    hover = f"%{{meta}}<br>%{{x:,}} updates: %{{y:,.{curve.decimals}f}}<extra></extra>"
    # What all lines have in common is written once, in a template.
    common = {"mode": "lines+markers", "hovertemplate": hover, **COMMON_STYLE}
    figure.update_layout(template={"data": {"scatter": [common]}})
    (left, right), values = visible_range(curves, curve, every_line=True)
    figure.update_xaxes(AXIS, title="updates", range=[left, right], tickformat=",~f")
    figure.update_yaxes(AXIS, title=curve.label)
    if curve.better == "lower":
        figure.update_yaxes(_log_axis(values), range=list(map(math.log10, values)))
    return figure


def _log_axis(values):
    """Returns plotly's settings of a logarithmic axis for values."""
    if max(values) > 10 * min(values):
        return LOG_AXIS | {"dtick": "D2"}  # labels at 1, 2, 5, 10, because those of all digits overlap
    return LOG_AXIS


def _seeds(line):
    """Returns a separate line for each seed of a line that has points."""
    seeds = []
    for record in line.records:
        seed = replace(line, records=[record])
        if len(seed.points):
            seeds.append(seed)
    return seeds


def _trace(line, count):
    """Returns plotly's description of a line of one seed with at most ``count`` points, without its style."""
    name = f"{line.attention} {line.row}"
    points = thinned(line.points["mean"], count)
    return {
        "type": "scatter",
        "x": points.index.tolist(),
        "y": [float(f"{value:.6g}") for value in points],
        "legendgroup": escape(name),
        "meta": escape(f"{name}, seed {line.records[0].run.seed}"),
    }


def thinned(points: pd.Series, count: int | None) -> pd.Series:
    """Returns at most ``count`` points, or four if ``count`` is smaller, that preserve the shape of a line.

    These are the first and the last point of the line, and the lowest and the highest point of each of the
    parts of equal length into which the other points are divided.
    """
    if count is None or len(points) <= max(count, 4):
        return points
    parts = np.array_split(points.to_numpy()[1:-1], max(1, (count - 2) // 2))
    starts = 1 + np.cumsum([0, *map(len, parts[:-1])])
    kept = {0, len(points) - 1}
    for start, part in zip(starts, parts, strict=True):
        kept |= {int(start + part.argmin()), int(start + part.argmax())}
    return points.iloc[sorted(kept)]


def column_figure(table: Table, summary: pd.DataFrame) -> go.Figure | None:
    """Returns a plot of the columns that were measured on the same runs, such as block lengths.

    The result is None if there are fewer than three such columns.
    """
    first = {}
    same_runs = []
    for cell in table.cells:
        runs = first.setdefault((cell.attention, cell.row), cell.runs)
        same_runs.append(cell.runs == runs)
    cells, columns = column_lines(summary[same_runs])
    if len(columns) < 3:
        return None
    figure = go.Figure(layout=LAYOUT)
    styles = line_styles(summary.itertuples())
    for (attention, row), line in cells.groupby(["attention", "row"], sort=False):
        name = f"{attention} {row}"
        digits = line["decimals"].iloc[-1]
        color, marker = styles[attention, row]
        figure.add_scatter(
            x=_names(line["column"]),
            y=line["mean"].tolist(),
            error_y={"type": "data", "array": line["std"].fillna(0).tolist(), "thickness": 1},
            mode="lines+markers",
            name=legend_text(format_number(line["mean"].iloc[-1], digits), name),
            meta=escape(name),
            hovertemplate=f"%{{meta}}<br>%{{x}}: %{{y:,.{digits}f}}<extra></extra>",
            **trace_style(color, marker, attention),
        )
    figure.update_traces(COMMON_STYLE)
    figure.update_xaxes(AXIS, type="category", categoryorder="array", categoryarray=_names(columns))
    figure.update_yaxes(AXIS, title=escape(heading(cells["metric"].iloc[0])))
    if needs_log_scale(cells["mean"]):
        figure.update_yaxes(_log_axis(cells["mean"]))
    return figure


def _names(columns):
    return [escape(heading(column)) for column in columns]


def legend_text(value: str, name: str) -> str:
    """Returns the legend entry of a line as HTML; long names are wrapped."""
    return escape(f"{value}  {wrap(name)}").replace("\n", "<br>")


def trace_style(color: str, marker: str, attention: str) -> dict[str, dict]:
    """Returns plotly's settings of a line; softmax attention is dashed and has open markers."""
    style = LINE_STYLES[attention]
    if style == "-":
        symbol = SYMBOLS[marker]
        dash = "solid"
    else:
        _, lengths = style  # of dashes and the gaps between them, in multiples of the line's width
        symbol = f"{SYMBOLS[marker]}-open"
        dash = ",".join(f"{WIDTH * length}px" for length in lengths)
    return {"line": {"color": color, "dash": dash}, "marker": {"color": color, "symbol": symbol}}


def figure_html(figure: go.Figure | None, name: str) -> Markup | None:
    """Returns the HTML of a figure, a ``<div>`` with the id ``name``, or None without a figure."""
    if figure is None:
        return None
    options = {"include_plotlyjs": False, "full_html": False, "post_script": TOUCH_SCRIPT}
    return Markup(to_html(figure, CONFIG, div_id=name, **options))
