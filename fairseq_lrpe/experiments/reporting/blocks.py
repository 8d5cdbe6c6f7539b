"""Building blocks of the HTML pages.

``base.html.jinja`` is the layout of a page, and ``blocks.html.jinja`` has macros for tables, facts and plots.
"""

import math
import re
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from fairseq_lrpe.experiments.reporting.renderers import TEXT_COLUMNS, Bold
from fairseq_lrpe.utils.numbers import format_number

WIDTH = 330  # of plots of weights
HEIGHT = 170
LEFT = 38  # margins of all SVG plots
BOTTOM = 20
HIGHEST = 32.0  # perplexity at the upper edge of the scatter plot


def render(template: str, **variables: object) -> str:
    """Returns the text of a template in this folder; variables are escaped in HTML and SVG."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(("html.jinja", "svg.jinja")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    environment.filters["unbroken"] = unbroken
    environment.filters["column_class"] = column_class
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    return environment.get_template(template).render(variables)


def breakable(text: object) -> Markup:
    """Returns a path or key as HTML that may be wrapped after slashes and dots."""
    return Markup(re.sub(r"(?<=[./])(?=\w)", "<wbr>", str(escape(text))))


def unbroken(cell: str) -> str:
    """Returns the text of a cell with non-breaking spaces in parts such as "± 0.15" and "(2 of 3)"."""
    return re.sub(r"± |\(\d+ of \d+\)", lambda match: match[0].replace(" ", "\u00a0"), cell)


def column_class(name: str) -> str:
    """Returns the CSS class of the column ``name``, which is "" for measured numbers."""
    if name in ("changes", "state"):
        return "wrap"
    if name in TEXT_COLUMNS:
        return "text"
    return "paper" if name.endswith("(paper)") else ""


def weight_plot(curves: dict[str, list[tuple[int, float]]]) -> Markup:
    """Returns a plot of weights over the distance as SVG; the y-axis is asinh(weight), since some are large.

    Args:
        curves: {attention: [(distance, weight relative to uniform attention)]}.
    """
    last = 0
    smallest = 0.0
    largest = 1.5
    for points in curves.values():
        for distance, weight in points:
            last = max(last, distance)
            smallest = min(smallest, weight)
            largest = max(largest, weight)
    low = math.asinh(smallest)
    high = math.asinh(largest) + 0.05

    def x(distance):
        return f"{LEFT + (WIDTH - LEFT - 4) * distance / last:.0f}"

    def y(weight):
        return f"{(HEIGHT - BOTTOM) * (high - math.asinh(weight)) / (high - low):.1f}"

    lines = {}
    for attention, points in curves.items():
        lines[attention] = []
        for distance, weight in points:
            lines[attention].append((x(distance), y(weight)))
    text = render(
        "weight_plot.svg.jinja",
        size=(WIDTH, HEIGHT),
        lines=lines,
        axes=[(x(0), x(last), y(weight)) for weight in (0, 1)],
        ticks=[(x(-4), y(weight), f"{weight:g}") for weight in (0, 1, 4, 16) if weight <= largest],
        ends=[(x(0), "middle", "0"), (x(last), "end", f"distance {last}")],
    )
    return Markup(text)


def scatter_plot(points: Iterable[tuple[float, float, str, str, str]]) -> Markup:
    """Returns a plot of perplexities as SVG: x is at the training length, and y at 16 times this length.

    Both axes are logarithmic. Each point has a tooltip, and the best point of each kind and attention at 16 ×
    has a label beside the plot. Without points, the result is empty.

    Args:
        points: (perplexity at 1 ×, at 16 ×, method, attention, kind). Perplexities at 16 × above ``HIGHEST``
            are drawn at the upper edge.
    """
    points = sorted(points, key=itemgetter(1))
    if not points:
        return Markup()
    width = 420
    height = 400
    at_training_length, at_16_times, _, _, kinds = zip(*points, strict=True)
    low = math.log(0.97 * min(at_training_length + at_16_times))
    high = math.log(HIGHEST)
    right = math.log(1.03 * max(at_training_length))

    def x_axis(value):
        return round(LEFT + (width - LEFT) * (math.log(value) - low) / (right - low), 1)

    def y_axis(value):
        return round((height - BOTTOM) * (high - math.log(min(value, HIGHEST))) / (high - low), 1)

    def ticks(axis, values, end):
        return [(axis(value), value) for value in values if low < math.log(value) < end]

    drawn = []
    best = {}
    for x, y, method, attention, kind in points:
        numbers = (format_number(x, 2), format_number(y, 2))
        point = (x_axis(x), y_axis(y), method, attention, kind, *numbers)
        drawn.append(point)
        best.setdefault((attention, kind), point)  # points are sorted by y
    gap = (height - BOTTOM) / len(best)
    labels = []
    for number, point in enumerate(sorted(best.values(), key=itemgetter(1))):
        labels.append((point, round((number + 0.5) * gap, 1)))
    text = render(
        "scatter_plot.svg.jinja",
        size=(width + 310, height),
        edge=width,
        bottom=height - BOTTOM,
        points=drawn,
        labels=labels,
        colors={kind: number for number, kind in enumerate(sorted(set(kinds)))},
        ticks_x=ticks(x_axis, (6, 7, 8, 9, 10, 12), right),
        ticks_y=ticks(y_axis, (6, 7, 8, 10, 15, 20, 30), high),
    )
    return Markup(text)
