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

WIDTH, HEIGHT, LEFT, BOTTOM = 330, 170, 38, 20  # of SVG plots, and of their margins
HIGHEST = 32.0  # perplexity at the upper edge of the scatter plot


def render(template: str, **variables: object) -> str:
    """Renders a template in this folder; variables are escaped in HTML and SVG."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(("html.jinja", "svg.jinja")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {f.__name__: f for f in (breakable, unbroken, column_class)}
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    return environment.get_template(template).render(variables)


def breakable(text: object) -> Markup:
    """Returns a path or key as HTML that may be wrapped after slashes and dots."""
    return Markup(re.sub(r"(?<=[./])(?=\w)", "<wbr>", str(escape(text))))


def unbroken(cell: str) -> str:
    """Returns the text of a cell without line breaks in parts such as "± 0.15" and "(2 of 3)"."""
    return re.sub(r"± |\(\d+ of \d+\)", lambda match: match[0].replace(" ", "\u00a0"), cell)


def column_class(name: str) -> str:
    """Returns the CSS class of a column, "" for measured numbers."""
    if name in ("changes", "state"):
        return "wrap"
    return "text" if name in TEXT_COLUMNS else "paper" if name.endswith("(paper)") else ""


def weight_plot(curves: dict[str, list[tuple[int, float]]]) -> Markup:
    """Returns an SVG of weights over the distance; the y-axis is asinh(weight), since some are large.

    Args:
        curves: {attention: [(distance, weight relative to uniform attention)]}.
    """
    last = max(points[-1][0] for points in curves.values())
    values = [value for points in curves.values() for _, value in points]
    largest = max(1.5, *values)
    low, high = math.asinh(min(0.0, *values)), math.asinh(largest) + 0.05

    def x(distance):
        return f"{LEFT + (WIDTH - LEFT - 4) * distance / last:.0f}"

    def y(value):
        return f"{(HEIGHT - BOTTOM) * (high - math.asinh(value)) / (high - low):.1f}"

    text = render(
        "weight_plot.svg.jinja",
        size=(WIDTH, HEIGHT),
        lines={attention: [(x(n), y(value)) for n, value in points] for attention, points in curves.items()},
        axes=[(x(0), x(last), y(value)) for value in (0, 1)],
        ticks=[(x(-4), y(value), f"{value:g}") for value in (0, 1, 4, 16) if value <= max(1, largest)],
        ends=[(x(0), "middle", "0"), (x(last), "end", f"distance {last}")],
    )
    return Markup(text)


def scatter_plot(points: Iterable[tuple[float, float, str, str, str]]) -> Markup:
    """Returns a scatter plot as SVG: x is the perplexity at the training length, y that at 16 × this length.

    Both axes are logarithmic.

    The best method of each kind and attention at 16 × has a label beside the plot; all have a tooltip.
    Without points, the result is empty.

    Args:
        points: (perplexity at 1 ×, at 16 ×, method, attention, kind). Perplexities at 16 × above ``HIGHEST``
            are drawn at the upper edge.
    """
    points = sorted(points, key=itemgetter(1))
    if not points:
        return Markup()
    width, height = 420, 400
    low, high = math.log(0.97 * min(min(x, y) for x, y, *_ in points)), math.log(HIGHEST)
    right = math.log(1.03 * max(x for x, *_ in points))

    def x_axis(value):
        return round(LEFT + (width - LEFT) * (math.log(value) - low) / (right - low), 1)

    def y_axis(value):
        return round((height - BOTTOM) * (high - math.log(min(value, HIGHEST))) / (high - low), 1)

    kinds = sorted({kind for *_, kind in points})
    found = [(x_axis(x), y_axis(y), *about, f"{x:.2f}", f"{y:.2f}") for x, y, *about in points]
    best = {}
    for point in found:
        best.setdefault(point[3:5], point)
    labels = sorted(best.values(), key=itemgetter(1))
    gap = (height - BOTTOM) / len(labels)
    text = render(
        "scatter_plot.svg.jinja",
        size=(width + 310, height),
        edge=width,
        bottom=height - BOTTOM,
        points=found,
        labels=[(point, round((n + 0.5) * gap, 1)) for n, point in enumerate(labels)],
        colors={kind: n for n, kind in enumerate(kinds)},
        ticks_x=[(x_axis(value), value) for value in (6, 7, 8, 9, 10, 12) if low < math.log(value) < right],
        ticks_y=[(y_axis(value), value) for value in (6, 7, 8, 10, 15, 20, 30) if math.log(value) > low],
    )
    return Markup(text)
