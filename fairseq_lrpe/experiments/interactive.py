"""The pictures of curves.py and columns.py for a page: to zoom, to point at, to switch lines off.

They need plotly, the extra ``report``.
"""

import math
from collections import Counter
from html import escape

import plotly.graph_objects as go
from plotly.io import to_html

from fairseq_lrpe.experiments import columns
from fairseq_lrpe.experiments.curves import Line, frame
from fairseq_lrpe.experiments.entries import Entry, decimals
from fairseq_lrpe.experiments.listing import Row
from fairseq_lrpe.experiments.looks import STYLES, look
from fairseq_lrpe.experiments.markup import Markup

SYMBOLS = dict(zip(
    "os^vDPX*phd<>8H",
    "circle square triangle-up triangle-down diamond cross x star pentagon hexagon diamond-tall "
    "triangle-left triangle-right octagon hexagon2".split(),
    strict=True,
))  # fmt: skip
"""{matplotlib's marker: plotly's}"""
FILLS = ("", "-open", "-dot", "-open-dot")
"""Of the markers of rows that share a method."""
WIDTH = 1.5  # of lines, in pixels
MARKED = 12  # points of a line that have a marker, at most

LAYOUT = {
    "template": "none",
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
    "height": 520,
    "margin": {"l": 8, "r": 12, "t": 34, "b": 8},
    "hovermode": "closest",
    "legend": {"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0, "tracegroupgap": 0},
}
AXIS = {
    "gridcolor": "#e6e6e6",
    "zeroline": False,
    "automargin": True,
    "linecolor": "#999",
    "ticks": "outside",
}
SCROLL = "if (matchMedia('(pointer: coarse)').matches) Plotly.relayout('{plot_id}', {dragmode: false});"
"""A finger that moves over a plot scrolls the page; the plot's own buttons zoom."""
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,  # nothing leaves the page
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}


def curves(rows: list[Row]) -> go.Figure | None:
    """Returns the validations of an experiment's runs over the updates, a line a run; None without any."""
    drawn = next((run.kind.curve for row in rows for run in row.records.values() if run.curve), None)
    if drawn is None:
        return None
    lower = drawn.better == "lower"
    found = [(row, seeds) for row in rows if (seeds := by_seed(row))]
    found.sort(key=lambda of: last(of[1], lower), reverse=not lower)
    figure, drawn_of = go.Figure(layout=LAYOUT), Counter()
    for row, seeds in found:
        style, name = dressed(row.method, row.attention), f"{row.attention} {row.label}"
        style["marker"]["symbol"] += FILLS[drawn_of[look(row.method)] % len(FILLS)]
        drawn_of[look(row.method)] += 1
        for i, (seed, line) in enumerate(seeds.items()):
            figure.add_scatter(
                x=list(line.points),
                y=line.mean(),
                mode="lines+markers",
                name=escape(f"{last(seeds, lower):.{drawn.decimals}f}  {name}"),
                legendgroup=escape(name),
                showlegend=i == 0,
                meta=escape(f"{name}, seed {seed}"),
                hovertemplate=f"%{{meta}}<br>%{{x:,}} updates: %{{y:,.{drawn.decimals}f}}<extra></extra>",
                **style,
            )
    lines = [line for _, seeds in found for line in seeds.values()]
    end = max(max(line.points) for line in lines)
    start, bottom, top = frame(lines, end, drawn)
    highest = max(min(line.mean()) for line in lines)
    if lower and highest > top:  # of a run that has just begun; every line is to be seen
        start, top = min(min(line.points) for line in lines), 1.05 * highest
    margin = 0.02 * (end - start) or 0.02 * end
    figure.update_xaxes(AXIS, title="updates", range=[start - margin, end + margin], tickformat=",d")
    figure.update_yaxes(AXIS, title=drawn.label)
    if lower:
        figure.update_yaxes(
            type="log", range=[math.log10(bottom), math.log10(top)], tickformat=",~r", nticks=12
        )
    return figure


def by_seed(row: Row) -> dict[str, Line]:
    """Returns {seed: its curve}, of those that have validated."""
    curves = {
        seed: {u: [x] for u, x in run.curve.items() if math.isfinite(x)} for seed, run in row.records.items()
    }
    return {seed: Line(row.method, dict(sorted(points.items()))) for seed, points in curves.items() if points}


def last(seeds: dict[str, Line], lower: bool) -> float:
    """Returns the best of the values that the seeds' curves end with."""
    return (min if lower else max)(line.mean()[-1] for line in seeds.values())


def over_columns(found: list[Entry]) -> go.Figure | None:
    """Returns what the columns measured of the same runs, such as a perplexity over the memory.

    None where there are not three such columns: a line between other columns says nothing.
    """
    first = {}
    for entry in found:
        first.setdefault(entry.key, entry.cell.runs)
    drawn = columns.lines([entry for entry in found if entry.cell.runs == first[entry.key]])
    if drawn is None or len(drawn.columns) < 3:
        return None
    figure = go.Figure(layout=LAYOUT)
    for attention, best_first in drawn.rows.items():
        for row, entries in best_first:
            digits = decimals(entries[-1].cell)
            means, deviations, _ = zip(*(entry.measured() for entry in entries), strict=True)
            figure.add_scatter(
                x=[escape(entry.cell.column.replace("_", " ")) for entry in entries],
                y=means,
                error_y={"type": "data", "array": [x or 0 for x in deviations], "thickness": 1},
                mode="lines+markers",
                name=escape(f"{means[-1]:.{digits}f}  {attention} {row}"),
                meta=escape(f"{attention} {row}"),
                hovertemplate=f"%{{meta}}<br>%{{x}}: %{{y:,.{digits}f}}<extra></extra>",
                **dressed(entries[0].cell.method, attention),
            )
    names = [escape(column.replace("_", " ")) for column in drawn.columns]
    figure.update_xaxes(AXIS, type="category", categoryorder="array", categoryarray=names)
    figure.update_yaxes(AXIS, title=escape(drawn.metric.replace("_", " ")))
    if columns.far_apart(entry for rows in drawn.rows.values() for _, entries in rows for entry in entries):
        figure.update_yaxes(type="log", tickformat=",~r", nticks=12)
    return figure


def dressed(method: str | None, attention: str) -> dict[str, dict]:
    """Returns the line and the markers that a method has in every picture, with an attention's dashes."""
    colour, marker = look(method)
    style = STYLES.get(attention, "-")
    dash = "solid" if style == "-" else ",".join(f"{WIDTH * x}px" for x in style[1])
    return {
        "line": {"color": colour, "dash": dash, "width": WIDTH},
        "marker": {"color": colour, "symbol": SYMBOLS[marker], "size": 8, "maxdisplayed": MARKED},
    }


def drawing(figure: go.Figure, name: str) -> Markup:
    """Returns what draws the figure in a page that has plotly's script; ``name`` is the element's id."""
    options = {"include_plotlyjs": False, "full_html": False, "post_script": SCROLL}
    return Markup(to_html(figure, CONFIG, div_id=name, **options))
