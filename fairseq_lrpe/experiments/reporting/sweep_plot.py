"""The plot of a search: the best metric of an experiment's runs over the values of a changed setting."""

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fairseq_lrpe.experiments.definition.setting_differences import flatten
from fairseq_lrpe.experiments.reporting.plots import grid
from fairseq_lrpe.experiments.reporting.renderers import heading
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.style import LINE_STYLES, line_styles
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import save_figure

LOGARITHMIC = 5.0
"""Ratio of the largest and the smallest value above which the axis of the setting is logarithmic."""


def sweep_values(records: Iterable[RunRecord], key: str) -> pd.DataFrame:
    """Returns the first metric of the first evaluation of runs, with the values of a setting.

    Args:
        records: the records of runs of one experiment.
        key: the key of a setting, such as "train.lr".

    Returns:
        A DataFrame with the columns attention, method, row (the method and the other changes), x (the value
        of the setting), seed, y, metric and evaluation.

    Raises:
        UserError: if the setting is not a number in some run, or if no run has been evaluated.
    """
    lines = []
    for record in records:
        evaluation = next((name for name in record.measured if name != "training"), None)
        if record.problem is not None or evaluation is None:
            continue
        run = record.run
        changes = dict(run.changes)
        text = changes.pop(key, None)
        if text is None:
            text = dict(flatten(record.settings["config"])).get(key)
        row = ", ".join([run.method, *map("=".join, changes.items())])
        metric = next(iter(record.kind.metrics))
        value = record.value(evaluation, metric)
        lines.append(
            (run.attention, run.method, row, _number(text, key), run.seed, value, metric, evaluation)
        )
    columns = ["attention", "method", "row", "x", "seed", "y", "metric", "evaluation"]
    frame = pd.DataFrame(lines, columns=columns)
    if frame.empty:
        raise UserError("no run has been evaluated yet: there is nothing to plot")
    if frame["x"].nunique() < 2:
        raise UserError(f"all runs have the same {key}: train runs with other values, such as {key}=VALUE")
    return frame


def _number(text, key):
    try:
        return float(text)
    except (TypeError, ValueError):
        raise UserError(f"{key} is {text!r} in a run, not a number: choose another setting") from None


def plot_sweep(title: str, records: Iterable[RunRecord], key: str, path: Path) -> Figure:
    """Plots the first metric of an experiment over a setting, with a panel for each attention.

    A line is a method with all other settings equal; error bars are standard deviations over the seeds.
    """
    values = sweep_values(records, key)
    attentions = list(values["attention"].unique())
    figure, axes = grid(len(attentions), len(attentions), (7 * len(attentions), 5))
    names = values[["attention", "row", "method"]].drop_duplicates()
    styles = line_styles([SimpleNamespace(**line) for line in names.to_dict("records")])
    is_logarithmic = values["x"].min() > 0 and values["x"].max() / values["x"].min() >= LOGARITHMIC
    for attention, ax in zip(attentions, axes, strict=True):
        here = values[values["attention"] == attention]
        for row, line in here.groupby("row", sort=False):
            points = line.groupby("x")["y"].agg(["mean", "std"])
            color, marker = styles[attention, row]
            spread = points["std"].fillna(0.0)
            style = {"color": color, "marker": marker, "linestyle": LINE_STYLES[attention], "capsize": 3}
            ax.errorbar(points.index, points["mean"], spread, label=row, **style)
        if is_logarithmic:
            ax.set_xscale("log")
        ticks = np.unique(values["x"])
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        metric = heading(values["metric"].iloc[0])
        ax.set(
            xlabel=key, ylabel=f"{metric} ({values['evaluation'].iloc[0]})", title=f"{attention} attention"
        )
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small", ncols=math.ceil(here["row"].nunique() / 20))
    figure.suptitle(title)
    save_figure(figure, path, dpi=150)
    print(f"{path} shows the runs over {key}.", file=sys.stderr)
    return figure
