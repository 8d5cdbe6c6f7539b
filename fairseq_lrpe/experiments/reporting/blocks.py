"""Building blocks of the HTML pages.

``base.html.jinja`` is the layout of a page, and ``blocks.html.jinja`` has macros for tables, facts and plots.
"""

import math
import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from fairseq_lrpe.experiments.reporting.renderers import TEXT_COLUMNS, Bold

WIDTH, HEIGHT, LEFT, BOTTOM = 330, 170, 38, 20  # of SVG plots, and of their margins


def render(template: str, **variables: object) -> str:
    """Returns the text of a template in this folder; variables in HTML are escaped."""
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
    """Returns the CSS class of a column."""
    if name in ("changes", "state"):
        return "wrap"
    return "text" if name in TEXT_COLUMNS else "paper" if name.endswith("(paper)") else ""


def weight_plot(curves: dict[str, list[tuple[int, float]]]) -> Markup:
    """Returns an SVG with weights over the distance, on the axis asinh(weight), since some are large.

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
