"""The validations over the updates of a table's or an experiment's runs: the results command's picture."""

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.experiments.looks import STYLES, look

FILLS = ("full", "none", "left", "right", "top", "bottom")
"""Of the markers of rows that share a method."""

LEAST = 5e-4
"""What a value of 0 is drawn as: fairseq's logs have three decimals of a loss."""


class Line(NamedTuple):
    """A row's curve: {updates: [value of each seed]}."""

    method: str | None
    points: dict[int, list[float]]

    def mean(self) -> list[float]:
        return [max(statistics.fmean(values), LEAST) for values in self.points.values()]


def curve(records: dict) -> dict[int, list[float]]:
    """Returns {updates: [value of each seed]}, of the finished seeds if there are any, where all have one."""
    runs = [run for run in records.values() if run and run.curve]
    runs = [run for run in runs if run.values] or runs
    common = set.intersection(*(set(run.curve) for run in runs)) if runs else ()
    points = {updates: [run.curve[updates] for run in runs] for updates in sorted(common)}
    return {updates: values for updates, values in points.items() if all(map(math.isfinite, values))}


def curves(entries: list) -> dict[tuple, dict[str, Line]]:
    """Returns {(experiment, attention, its kind's curve): {row: its line}}."""
    found, runs = {}, {}
    for entry in entries:
        points, cell = curve(entry.records), entry.cell
        if points:
            panel, name = (cell.experiment, cell.attention, cell.kind.curve), cell.row
            if runs.setdefault((panel, name), cell.runs) != cell.runs:  # a column with changes of its own
                name = f"{cell.row}, {cell.column}"
            found.setdefault(panel, {})[name] = Line(cell.method, points)
    return found


def draw(title: str, entries: list, path: Path) -> object:
    """Draws the validations over the updates, a panel for each experiment and attention; returns the figure.

    A line is the mean of a row's seeds, its band the least to the largest of them.
    """
    from matplotlib.figure import Figure

    panels = curves(entries)
    if not panels:
        raise ValueError("no run has validated yet: there is nothing to plot")
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    tallest = max(sum(named(row).count("\n") + 1.2 for row in lines) for lines in panels.values())
    figure = Figure(figsize=(8.5 * across, max(5, 1 + 0.18 * tallest) * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flat
    for unused in axes[len(panels) :]:
        unused.remove()
    for ax, ((experiment, attention, drawn), lines) in zip(axes, panels.items(), strict=False):
        ax.set(xlabel="updates", ylabel=drawn.label, title=f"{experiment}, {attention} attention")
        draw_panel(ax, attention, drawn, lines)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return figure


def named(row: str, notes: list[str] | tuple = ()) -> str:
    """Returns a row's name in a legend, in as many lines as it takes beside a plot."""
    return textwrap.fill(row + (f" ({', '.join(notes)})" if notes else ""), 32, subsequent_indent="    ")


def draw_panel(ax, attention: str, drawn, lines: dict[str, Line]) -> None:
    """Draws the lines of one panel, the best first in the legend; ``drawn`` is the kind's curve."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

    last = {row: line.mean()[-1] for row, line in lines.items()}
    end = max(max(line.points) for line in lines.values())
    lower = drawn.better == "lower"  # a loss falls from far above
    start, bottom, top = frame(lines.values(), end, drawn)
    drawn_of = Counter()
    for i, row in enumerate(sorted(lines, key=last.get, reverse=not lower)):
        line, (colour, marker) = lines[row], look(lines[row].method)
        x = list(line.points)
        notes = [f"at {x[-1]:,}"] * (x[-1] < end) + ["above"] * (last[row] > top)
        ax.plot(
            x,
            line.mean(),
            color=colour,
            linestyle=STYLES.get(attention, "-"),
            marker=marker,
            fillstyle=FILLS[drawn_of[colour, marker] % len(FILLS)],
            markersize=6,
            # Of a long line some points alone have a marker, those of different rows at different places.
            markevery=1 if len(x) <= 12 else (i % 4 * (len(x) // 32), len(x) // 8),
            linewidth=1.5,
            label=f"{last[row]:.{drawn.decimals}f}  {named(row, notes)}",
        )
        drawn_of[colour, marker] += 1
        if len(line.points[x[0]]) > 1:
            least, largest = zip(*((min(v), max(v)) for v in line.points.values()), strict=True)
            ax.fill_between(x, least, largest, color=colour, alpha=0.15, linewidth=0)
    margin = 0.02 * (end - start) or 0.02 * end
    ax.set(xlim=(start - margin, end + margin))
    if lower:
        ax.set(ylim=(bottom, top), yscale="log")
    wide = lower and top > 10 * bottom
    ticks = LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(nbins=14, steps=[1, 2, 2.5, 5, 10])
    ax.yaxis.set_major_locator(ticks)
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 2.5, 5, 10], integer=True))
    ax.grid(alpha=0.25)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="last  method", handlelength=3.5)


def frame(lines: Collection[Line], end: int, drawn) -> tuple[int, float | None, float]:
    """Returns (the updates up to which every line is above, the least and the largest value to show)."""
    bottom, top = None, math.inf
    if drawn.whole:
        values = [x for line in lines for seeds in line.points.values() for x in seeds]
        bottom, top = 0.95 * min(values), 1.05 * max(values)
    elif drawn.better == "lower":
        bottom, top = window(lines, end)
    visible = [u for line in lines for u, v in zip(line.points, line.mean(), strict=True) if v <= top]
    return min(visible, default=0), bottom, top


def window(lines: Collection[Line], end: int) -> tuple[float, float]:
    """Returns the least and largest value to show.

    The lines' ends, but those far above, fill the lower half, and the later half of the training is seen; so
    are lines of one or two points.
    """
    last = [line.mean()[-1] for line in lines]
    near = [x for x in last if x <= 1.5 * statistics.median(last)]
    spread = max(math.log(max(near) / min(near)), 0.05)
    middle = [
        min((u, v) for u, v in zip(line.points, line.mean(), strict=True) if 2 * u >= end)
        for line in lines
        if 2 * max(line.points) >= end
    ]
    top = max(max(near) * math.exp(0.9 * spread), statistics.median(ppl for _, ppl in middle))
    top = max([top, *(1.05 * max(line.mean()) for line in lines if len(line.points) <= 2)])
    top = min(top, 1.05 * max(max(line.mean()) for line in lines))
    return min(near) * (min(near) / top) ** 0.05, top
