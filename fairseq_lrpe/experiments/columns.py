"""What a table measured over its columns, such as the perplexity over the memory: a picture."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.experiments.curves import named
from fairseq_lrpe.experiments.entries import Entry, decimals
from fairseq_lrpe.experiments.looks import STYLES, look


class Lines(NamedTuple):
    """What is drawn: ``rows`` is {attention: [(row, its measured entries)]}, the best of each first."""

    metric: str
    columns: list[str]
    rows: dict[str, list[tuple[str, list[Entry]]]]


def lines(found: list[Entry]) -> Lines | None:
    """Returns the columns of the metric that most of them have, in the table's order; None without any."""
    measured = [entry for entry in found if entry.counts() and not entry.parts]
    if not measured:
        return None
    metrics = [entry.cell.metric for entry in measured]
    metric = max(dict.fromkeys(metrics), key=metrics.count)
    measured = [entry for entry in measured if entry.cell.metric == metric]
    columns = list(dict.fromkeys(entry.cell.column for entry in measured))
    rows = {}
    for entry in measured:
        rows.setdefault(entry.cell.attention, {}).setdefault(entry.cell.row, []).append(entry)
    sign = -1 if measured[0].cell.better == "higher" else 1
    best_first = {
        attention: sorted(of.items(), key=lambda item: sign * item[1][-1].measured()[0])
        for attention, of in rows.items()
    }
    return Lines(metric, columns, best_first)


def far_apart(entries: Iterable[Entry]) -> bool:
    """Returns whether the measured numbers are to be drawn on a logarithmic scale."""
    values = [entry.measured()[0] for entry in entries]
    return max(values) > 4 * min(values) > 0


def draw(title: str, found: list[Entry], path: Path) -> object:
    """Draws a line for each row, with deviations, a panel for each attention; returns the figure.

    Rows that share a method differ in their markers, which are hollow from the second on.
    """
    from matplotlib.figure import Figure

    drawn = lines(found)
    if drawn is None:
        raise ValueError("nothing is measured yet: there is nothing to plot")
    columns = drawn.columns
    most = max(map(len, drawn.rows.values()))
    figure = Figure(figsize=(8 * len(drawn.rows), max(5, 0.24 * most)), layout="constrained")
    panels = figure.subplots(1, len(drawn.rows), squeeze=False, sharey=True).flat
    for ax, (attention, best_first) in zip(panels, drawn.rows.items(), strict=True):
        seen = set()
        for row, entries in best_first:
            means, deviations, _ = zip(*(entry.measured() for entry in entries), strict=True)
            colour, marker = look(entries[0].cell.method)
            hollow = {"markerfacecolor": "none"} if (colour, marker) in seen else {}
            seen.add((colour, marker))
            ax.errorbar(
                [columns.index(entry.cell.column) for entry in entries],
                means,
                [x or 0.0 for x in deviations],
                color=colour,
                marker=marker,
                linestyle=STYLES.get(attention, "-"),
                capsize=3,
                **hollow,
                label=f"{means[-1]:.{decimals(entries[-1].cell)}f}  {named(row)}",
            )
        if far_apart(entry for _, entries in best_first for entry in entries):
            ax.set_yscale("log")
            for plain in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
                plain("{x:g}")
        ax.set_xticks(range(len(columns)), [column.replace("_", " ") for column in columns])
        ax.set(ylabel=drawn.metric.replace("_", " "), title=f"{attention} attention")
        ax.grid(alpha=0.25)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="last  method", handlelength=3.5)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return figure
