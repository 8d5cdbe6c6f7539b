"""A table of the methods that are best in something, for the page of findings."""

from typing import NamedTuple

import pandas as pd

from fairseq_lrpe.experiments.reporting.findings import Findings
from fairseq_lrpe.experiments.reporting.measured_columns import FOR_COMPARISON
from fairseq_lrpe.experiments.reporting.renderers import Bold
from fairseq_lrpe.experiments.reporting.settings import machine

BEST = 3
"""Number of rows of each property that the table shows."""


class Property(NamedTuple):
    """A column of the table."""

    heading: str
    table: str
    column: str
    is_goal: bool = True  # whether the best rows of the column are shown


PROPERTIES = (
    Property("perplexity", "extrapolation", "1 ×"),
    Property("at 16 × the length", "extrapolation", "16 ×"),
    Property("recall of 16 pairs (%)", "recall", "16 pairs"),
    Property("numbers found at 4 × the length (%)", "needle", "4 ×"),
    Property("speed of training", "training_speed", "speed at 2,048", is_goal=False),
)


def at_a_glance(findings: Findings, attention: str) -> pd.DataFrame:
    """Returns the methods that are among the best of a property, with all properties, and NoPE and RoPE.

    Args:
        findings: the recorded runs.
        attention: type of attention.

    Returns:
        A DataFrame of texts, in which the best numbers of a property are bold, and "-" stands for a missing
        number. Methods are in the order of the first property. It is empty if the first property was not
        measured.
    """
    columns = {}
    for each in PROPERTIES:
        if findings.is_measured(each.table):
            columns[each] = findings.column(each.table, each.column, attention)
    first = columns.get(PROPERTIES[0])
    if first is None or not first.rows:
        return pd.DataFrame()
    shown = dict.fromkeys(FOR_COMPARISON)
    best_texts = {}
    for each, column in columns.items():
        if each.is_goal and column.rows:
            best = column.ordered()[:BEST]
            shown |= dict.fromkeys(best)
            best_texts[each] = column.text(best[0])
    order = {row: number for number, row in enumerate(first.ordered())}
    lines = []
    for row in sorted(shown, key=lambda row: order.get(row, len(order))):
        line = {"method": row}
        for each, column in columns.items():
            text = column.text(row) if row in column.rows else "-"
            line[each.heading] = Bold(text) if text == best_texts.get(each) else text
        lines.append(line)
    return pd.DataFrame(lines, dtype=object)


def machines_of_speed(findings: Findings) -> set[str]:
    """Returns the machines that measured the speed of training, of which each has ratios of its own."""
    if not findings.is_measured("training_speed"):
        return set()
    recorded = findings.tables["training_speed"]["mini"].recorded
    return {machine(findings.runs[run].settings) for run in recorded}
