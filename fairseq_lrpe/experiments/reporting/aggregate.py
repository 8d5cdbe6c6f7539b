"""Means, ranks and differences of measurements, by cell of a table or by run."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.cells import measure_cells
from fairseq_lrpe.experiments.reporting.differences import NO_DIFFERENCE, Differences
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, readable

CSV = "attention row column measured_on metric length unit paper paper_std mean std state seeds".split()
CSV += "paper_rank rank difference low high common_seeds".split()
RUNS_CSV = "attention method changes evaluation metric length seeds mean std measured_seeds state".split()
"""Columns of CSV output: ``CSV`` for a table, ``RUNS_CSV`` for the runs of an experiment."""


def summarize(table: Table, records: Mapping[Run, RunRecord]) -> pd.DataFrame:
    """Returns a DataFrame with one line per cell of the table, in the order of ``table.cells``.

    The columns that identify the cell and contain its published number are followed by, among others,

    - mean, std, seeds: mean and sample standard deviation over the measured seeds, and their number
    - state: the number of measured seeds as text, or, without any, the state of the run that got furthest
    - chosen: the changes of the chosen trial
    - tuned: the changes that a search has found best for the row
    - length, unit: planned length of the measured trainings, if all have the same
    - started_lengths: planned lengths of all started trainings
    - is_best, paper_is_best, paper_rank, rank: comparison of the measured and of the published numbers among
      the rows of the same attention and column
    - difference, low, high, common_seeds, compared: difference to the baseline over the common seeds with its
      interval among the rows of the same attention and column; see :meth:`Differences.between`
    """
    measured = measure_cells(table, records)
    differences = _differences(table, measured)
    lines = []
    for cell in table.cells:
        baseline = table.baseline(cell)
        line = _summarize_cell(cell, measured[id(cell)])
        if baseline is None:
            line |= NO_DIFFERENCE
        else:
            line |= differences[cell.attention, cell.column].between(id(cell), id(baseline))
        lines.append(line)
    summary = pd.DataFrame(lines)
    summary["is_ranked"] = summary["mean"].map(math.isfinite)
    _add_ranks(summary)
    return summary


def _differences(table, measured):
    """Returns {(attention, column): :class:`Differences` of its rows}; the rows are named by ids of cells."""
    values = {}
    metrics = {}
    for cell in table.cells:
        group = cell.attention, cell.column
        values.setdefault(group, {})[id(cell)] = measured[id(cell)].values
        metrics.setdefault(group, cell.metric)
    differences = {}
    for group, rows in values.items():
        differences[group] = Differences(rows, metrics[group])
    return differences


def _lengths(records):
    """Returns the different (planned length, unit) of runs, sorted by unit and length."""
    lengths = set()
    for record in records:
        if record.unit:
            lengths.add((record.length, record.unit))
    return tuple(sorted(lengths, key=lambda length: length[::-1]))


def describe_lengths(lengths: Iterable[tuple[float, str]]) -> str:
    """Returns lengths of trainings in words, such as "60 or 100 updates"."""
    numbers = {}
    for length, unit in lengths:
        numbers.setdefault(unit, []).append("?" if math.isnan(length) else f"{length:.10g}")
    texts = []
    for unit, lengths_in_unit in numbers.items():
        name = unit.removesuffix("s") if lengths_in_unit == ["1"] else unit
        texts.append(f"{' or '.join(lengths_in_unit)} {name}")
    return ", ".join(texts)


def _summarize_cell(cell, measured):
    sign = -1 if cell.better == "higher" else 1
    # A diverged run, whose value is NaN, is the worst one.
    values = sorted(measured.values.values(), key=lambda value: (math.isnan(value), sign * value))
    is_without_worst = cell.drop_worst and len(values) > 2
    mean, std = mean_and_std(values[:-1] if is_without_worst else values)
    state = f"{len(values)}" if len(values) == measured.planned else f"{len(values)} of {measured.planned}"
    paper, paper_std = cell.published or (None, None)
    with_value = [record for record in measured.records if record.run.seed in measured.values]
    lengths = _lengths(with_value)
    return {
        "attention": cell.attention,
        "row": cell.row,
        "column": cell.column,
        "metric": cell.metric,
        "better": cell.better,
        "method": cell.method or "",
        "measured_on": cell.experiment,
        "paper": math.nan if paper is None else paper,
        "paper_std": math.nan if paper_std is None else paper_std,
        "mean": mean,
        "std": std,
        "seeds": len(values),
        "state": state if values else _state(measured.records),
        "chosen": with_value[0].changes if cell.trials and with_value else None,
        "length": lengths[0][0] if len(lengths) == 1 else math.nan,
        "unit": lengths[0][1] if len(lengths) == 1 else None,
        "started_lengths": _lengths(measured.records),
        "signatures": _signatures(cell, with_value),
        "decimals": cell.kind.decimals_of(cell.metric) if cell.kind else 2,
        "tuned": cell.tuned,
    }


def _signatures(cell, records):
    """Returns the different signatures, such as sacreBLEU's, of a cell's metric in ``records``."""
    signatures = {}
    for record in records:
        signature = record.measured[cell.evaluation].get(f"{cell.metric}_signature")
        if signature:
            signatures[signature] = None
    return tuple(signatures)


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the sample standard deviation; either is NaN if it is undefined."""
    std = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan
    return statistics.fmean(values) if len(values) else math.nan, std


def _state(records):
    """Returns the state of the run that got furthest, for a cell without a value, or "-" without runs."""
    with_log = readable(records)
    if not with_log:
        return records[0].state if records else "-"
    furthest = max(with_log, key=lambda record: (record.state == "running", record.reached))
    return "not measured" if furthest.state == "finished" else furthest.describe_state()


def _add_ranks(summary):
    summary["is_comparable"] = summary["is_ranked"] & summary["paper"].notna()
    sign = summary["better"].map({"lower": 1, "higher": -1})
    groups = [summary["attention"], summary["column"]]
    for value, flag, rank, shown in (
        ("paper", "paper_is_best", "paper_rank", summary["paper"].notna()),
        ("mean", "is_best", "rank", summary["is_ranked"]),
    ):
        signed = (sign * summary[value]).where(shown)
        by_group = signed.groupby(groups)
        summary[flag] = (signed == by_group.transform("min")) & (by_group.transform("nunique") > 1)
        compared = signed.where(summary["is_comparable"]).groupby(groups)
        summary[rank] = compared.rank().where(compared.transform("count") > 1)


def rank_correlations(summary: pd.DataFrame, min_rows: int = 3) -> dict[tuple[str, str], float]:
    """Returns {(attention, column): Spearman's ρ} of the published and the measured ranks.

    ρ is NaN if there are fewer than ``min_rows``, or if all published or all measured values are equal.
    """
    groups = summary.dropna(subset=["paper_rank", "rank"]).groupby(["attention", "column"])
    with np.errstate(invalid="ignore"):  # equal values
        correlations = {}
        for group, rows in groups:
            correlations[group] = rows["paper_rank"].corr(rows["rank"], min_periods=min_rows)
    return correlations


def values_by_metric(records: Collection[RunRecord]) -> dict[tuple[str, str], dict[int, float]]:
    """Returns {(evaluation, metric): {seed: value}} of a run's seeds.

    If a seed diverged, metrics that it lacks are NaN, except for speeds.
    """
    by_metric = {}
    for record in records:
        for evaluation, metric, value, _ in record.measurements():
            by_metric.setdefault((evaluation, metric), {})[record.run.seed] = value
    for record in records:
        if record.is_diverged:
            for (evaluation, metric), values in by_metric.items():
                if not metric.endswith("_per_second"):
                    values[record.run.seed] = record.value(evaluation, metric)
    return by_metric


def summarize_runs(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Returns the means and standard deviations of an experiment's measurements over seeds, without speeds.

    Returns:
        A DataFrame with one line per attention, method, changes, evaluation and metric. The further columns
        are length (such as "400 updates"), seeds, mean, std, measured_seeds, state (of the unfinished seeds)
        and decimals. Runs without measurements have one line without a metric.
    """
    groups = {}
    for record in records:
        groups.setdefault(record.order, []).append(record)
    lines = []
    for _, seeds in sorted(groups.items()):
        lines += _summarize_seeds(seeds)
    return pd.DataFrame(lines, columns=[*RUNS_CSV, "decimals"])


def _summarize_seeds(records):
    """Returns a line of ``summarize_runs`` for each metric of a run, or one without a metric.

    ``records`` are those of the run's seeds.
    """
    run = {
        "attention": records[0].run.attention,
        "method": records[0].run.method,
        "changes": records[0].changes,
        "length": describe_lengths(_lengths(records)),
        "seeds": len(records),
        "state": _states(records),
        "measured_seeds": 0,
    }
    lines = []
    for (evaluation, metric), values in values_by_metric(records).items():
        if metric.endswith("_per_second"):
            continue
        mean, std = mean_and_std(list(values.values()))
        kind = next(record.kind for record in records if record.kind)
        line = {
            "evaluation": evaluation,
            "metric": metric,
            "mean": mean,
            "std": std,
            "measured_seeds": len(values),
            "decimals": kind.decimals_of(metric),
        }
        lines.append(run | line)
    return lines or [run]


def _states(records):
    """Returns the states of unfinished seeds as text, or "finished"."""
    texts = []
    for record in records:
        state = record.describe_state()
        if state != "finished":
            texts.append(f"seed {record.run.seed} {state}")
    return "; ".join(texts) or "finished"
