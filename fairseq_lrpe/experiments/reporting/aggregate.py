"""Means, ranks and differences of measurements, by cell of a table or by run."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fairseq_lrpe.experiments.definition.cell import Cell
from fairseq_lrpe.experiments.definition.choice import best_by_score
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.reporting.differences import NO_DIFFERENCE, Differences
from fairseq_lrpe.experiments.reporting.run_record import RunRecord

CSV = "attention row column measured_on metric length unit paper paper_std mean std state seeds".split()
CSV += "paper_rank rank difference low high common_seeds".split()
RUNS_CSV = "attention method changes evaluation metric length seeds mean std measured_seeds state".split()
"""Columns of the CSV output: ``CSV`` of a table, ``RUNS_CSV`` of the runs of an experiment."""


@dataclass
class Measured:
    """The measurements of a cell with ``planned`` seeds."""

    values: dict[int, float]  # {seed: value}
    planned: int
    records: list[RunRecord] = field(default_factory=list)  # started runs


def measuring_runs(cell: Cell, records: Mapping[Run, RunRecord]) -> list[Run]:
    """Returns the runs that measure a cell: all of them, or those of the best of its ``trials``.

    The best trial has the best mean score over the seeds with which every trial is measured. For another
    seed, a run that is not measured is returned, so that the cell has no value for this seed.
    """
    if not cell.trials:
        return cell.runs
    by_seed = list(zip(*cell.trials, strict=True))
    scores = [_scores(cell, runs, records) for runs in by_seed]
    complete = [seed for seed in scores if None not in seed]
    means = [statistics.fmean(trial) for trial in zip(*complete, strict=True)]
    _, metric = cell.score
    best = best_by_score(means, cell.kind.metrics[metric]) if means else 0
    measuring = []
    for runs, seed in zip(by_seed, scores, strict=True):
        measuring.append(runs[seed.index(None) if None in seed else best])
    return measuring


def _scores(cell, runs, records):
    """Returns the scores of runs by which the best trial of a cell is chosen, None for an unmeasured one."""
    return [records[run].value(*cell.score) if run in records else None for run in runs]


def measure(cell: Cell, records: Mapping[Run, RunRecord]) -> Measured:
    runs = {run.seed: run for run in measuring_runs(cell, records)}
    started = {seed: records[run] for seed, run in runs.items() if run in records}
    values = {seed: record.value(cell.evaluation, cell.metric) for seed, record in started.items()}
    values = {seed: value for seed, value in values.items() if value is not None}
    return Measured(values, len(runs), list(started.values()))


def _combine(cell, parts):
    """Combines the measurements of parts, for the seeds that all of them have."""
    seeds = sorted(set.intersection(*(set(part.values) for part in parts)))
    values = {seed: [part.values[seed] for part in parts] for seed in seeds}
    if cell.is_best:
        values = {seed: of[best_by_score(of, cell.better)] for seed, of in values.items()}
    else:
        values = {seed: statistics.fmean(of) for seed, of in values.items()}
    return Measured(values, min(part.planned for part in parts))


def summarize(table: Table, records: Mapping[Run, RunRecord]) -> pd.DataFrame:
    """Returns a DataFrame with one line per cell of the table, in the order of ``table.cells``.

    Its columns, beside those that identify the cell and its published number, include

    - mean, std, seeds: mean and sample standard deviation over the seeds that are measured
    - state: the number of seeds, or how far the runs got
    - chosen: the changes of the chosen trial
    - length, unit: planned length of the trainings that are measured, if it is the same
    - started_lengths: planned lengths of all trainings that were started
    - is_best, paper_is_best, paper_rank, rank: among the rows of the same attention
    - difference, low, high, common_seeds, compared: difference to the baseline over the common seeds with its
      interval among the rows of the same attention and column; see :meth:`Differences.between`
    """
    found = {id(cell): measure(cell, records) for cell in table.cells if not cell.parts}
    found |= {id(x): _combine(x, [found[id(part)] for part in x.parts]) for x in table.cells if x.parts}
    groups = {}
    for cell in table.cells:
        groups.setdefault((cell.attention, cell.column), []).append(cell)
    differences = {
        group: Differences({id(cell): found[id(cell)].values for cell in cells}, cells[0].metric)
        for group, cells in groups.items()
    }
    lines = []
    for cell in table.cells:
        among, base = differences[cell.attention, cell.column], table.baseline(cell)
        differs = NO_DIFFERENCE if base is None else among.between(id(cell), id(base))
        lines.append(_summarize_cell(cell, found[id(cell)]) | differs)
    summary = pd.DataFrame(lines)
    summary["is_ranked"] = summary["mean"].map(math.isfinite)
    _add_ranks(summary)
    return summary


def _lengths(records):
    lengths = {(record.length, record.unit) for record in records if record.unit}
    return tuple(sorted(lengths, key=lambda length: length[::-1]))


def describe_lengths(lengths: Iterable[tuple[float, str]]) -> str:
    """Returns lengths of trainings in words, such as "60 or 100 updates"."""
    numbers = {}
    for length, unit in lengths:
        numbers.setdefault(unit, []).append("?" if math.isnan(length) else f"{length:.10g}")
    return ", ".join(
        f"{' or '.join(found)} {unit.removesuffix('s') if found == ['1'] else unit}"
        for unit, found in numbers.items()
    )


def _summarize_cell(cell, measured):
    sign = -1 if cell.better == "higher" else 1
    # A diverged run, whose value is NaN, is the worst one.
    values = sorted(measured.values.values(), key=lambda value: (math.isnan(value), sign * value))
    mean, std = mean_and_std(values[:-1] if cell.drop_worst and len(values) > 2 else values)
    state = f"{len(values)}" if len(values) == measured.planned else f"{len(values)} of {measured.planned}"
    paper, paper_std = cell.published or (None, None)
    with_value = [x for x in measured.records if x.run.seed in measured.values]
    lengths = _lengths(with_value)
    signatures = [x.measured[cell.evaluation].get(f"{cell.metric}_signature") for x in with_value]
    return {
        **{name: getattr(cell, name) for name in ("attention", "row", "column", "metric", "better")},
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
        "signatures": tuple(dict.fromkeys(filter(None, signatures))),
        "decimals": (cell.kind or Kind).decimals.get(cell.metric, 2),
    }


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the sample standard deviation, which are NaN if they are undefined."""
    std = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan
    return statistics.fmean(values) if len(values) else math.nan, std


def _state(records):
    """Returns the state of the run that got furthest, for a cell without a value; "-" without runs."""
    readable = [record for record in records if record.problem is None]
    if not readable:
        return records[0].state if records else "-"
    furthest = max(readable, key=lambda record: (record.state == "running", record.reached))
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


def rank_correlations(summary: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Returns {(attention, column): Spearman's ρ} of the ranks.

    ρ is NaN if there are fewer than three rows, or if all published or all measured values are equal.
    """
    groups = summary.dropna(subset=["paper_rank", "rank"]).groupby(["attention", "column"])
    with np.errstate(invalid="ignore"):  # equal values
        return {group: rows["paper_rank"].corr(rows["rank"], min_periods=3) for group, rows in groups}


def values_by_metric(records: Collection[RunRecord]) -> dict[tuple[str, str], dict[int, float]]:
    """Returns {(evaluation, metric): {seed: value}} of the seeds of a run; a diverged one has NaN for all."""
    found = {}
    for record in records:
        for evaluation, metric, value, _ in record.measurements():
            found.setdefault((evaluation, metric), {})[record.run.seed] = value
    for record in records:
        if record.is_diverged:
            for (evaluation, metric), values in found.items():
                if not metric.endswith("_per_second"):
                    values[record.run.seed] = record.value(evaluation, metric)
    return found


def summarize_runs(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Summarizes the runs of one experiment over their seeds, without speeds.

    Returns:
        A DataFrame with one line per attention, method, changes, evaluation and metric. The further columns
        are length (such as "400 updates"), seeds, mean, std, measured_seeds, state (of the unfinished seeds)
        and decimals. Runs without measurements have one line without a metric.
    """
    groups, lines = {}, []
    for record in records:
        groups.setdefault(record.order, []).append(record)
    for (attention, _, method, changes), runs in sorted(groups.items()):
        states = [(x.run.seed, x.describe_state()) for x in runs]
        unusual = [f"seed {seed} {state}" for seed, state in states if state != "finished"]
        row = {"attention": attention, "method": method, "changes": changes, "measured_seeds": 0}
        row |= {"length": describe_lengths(_lengths(runs)), "seeds": len(runs)}
        row["state"] = "; ".join(unusual) or "finished"
        measured = []
        for (evaluation, metric), values in values_by_metric(runs).items():
            if not metric.endswith("_per_second"):
                mean, std = mean_and_std([*values.values()])
                line = {"evaluation": evaluation, "metric": metric, "mean": mean, "std": std}
                decimals = next(run.kind.decimals for run in runs if run.kind).get(metric, 2)
                measured.append({**row, **line, "measured_seeds": len(values), "decimals": decimals})
        lines += measured or [row]
    return pd.DataFrame(lines, columns=[*RUNS_CSV, "decimals"])
