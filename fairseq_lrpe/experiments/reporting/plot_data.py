"""The contents of plots drawn by matplotlib or plotly: ranges of curves, and lines over a table's columns."""

import math
import statistics

import pandas as pd

from fairseq_lrpe.experiments.definition.kinds.base import Curve


def visible_range(lines: list[pd.DataFrame], curve: Curve, every_line: bool = False) -> tuple[tuple, tuple]:
    """Returns the ranges (first, last) of updates and of values that show the second half of the training.

    Lines of one or two points are visible in full; so are all lines if the curve has ``show_all``. Falling
    curves that end far above the others are not visible, unless ``every_line`` is true. For rising curves,
    the range of values is (None, infinity).

    Args:
        lines: the points of each line, as :attr:`plots.Line.points`.
        curve: the plotted metric.
        every_line: whether the second half of every line must be visible.
    """
    end = max(points.index[-1] for points in lines)
    bottom = None
    top = math.inf
    if curve.better == "lower":
        far = 1.5 * statistics.median(points["mean"].iloc[-1] for points in lines)
        shown = []
        for points in lines:
            if curve.show_all or len(points) <= 2:
                shown.append(points)
            elif every_line or points["mean"].iloc[-1] <= far:
                shown.append(points[(2 * points.index >= end) | (points.index == points.index[-1])])
        visible = pd.concat(shown)
        bottom = 0.95 * visible["mean"].min()
        top = 1.05 * visible["max"].max()
    starts = []
    for points in lines:
        is_visible = points["mean"] <= top
        starts += points.index[is_visible].tolist()
    start = min(starts)
    margin = 0.02 * (end - start) or max(0.02 * end, 1)
    return (start - margin, end + margin), (bottom, top)


def column_lines(summary: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Returns the cells that are drawn as lines over a table's columns, and the names of these columns.

    The columns are those of the most frequent metric, without columns that combine others. Within each
    attention, rows are sorted by the value in their last column, best first.
    """
    cells = summary[summary["is_ranked"] & summary["measured_on"].notna()]
    metrics = cells["metric"].tolist()
    cells = cells[cells["metric"] == max(dict.fromkeys(metrics), key=metrics.count, default=None)]
    columns = list(cells["column"].unique())
    by_row = cells.groupby(["attention", "row"], sort=False)
    last = by_row["mean"].transform("last") * cells["better"].map({"lower": 1, "higher": -1})
    attentions = cells.groupby("attention", sort=False).ngroup()
    order = pd.DataFrame({"attention": attentions, "last": last, "row": by_row.ngroup()})
    return cells.loc[order.sort_values(list(order.columns), kind="stable").index], columns


def needs_log_scale(values: pd.Series) -> bool:
    return values.max() > 4 * values.min() > 0
