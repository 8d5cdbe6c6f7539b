"""Aggregates measurements into the cells of a table: means, ranks and differences to the baseline."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from fairseq_lrpe.experiments.definition.kinds import KINDS, Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Cell, Table
from fairseq_lrpe.experiments.reporting.measurements import RUN, STATE
from fairseq_lrpe.experiments.reporting.records import describe_state
from fairseq_lrpe.methods import METHODS, canonical

METHOD_ORDER = {method: index for index, method in enumerate(METHODS)}
CSV = "attention row column measured_on metric length unit paper paper_std mean std state seeds".split()
CSV += "paper_rank rank difference low high common_seeds".split()
RUNS_CSV = "attention method changes evaluation metric length seeds mean std measured_seeds state".split()
"""Columns of the CSV output: ``CSV`` of a table, ``RUNS_CSV`` of the runs of an experiment."""


def seed_values(table: Table, results: pd.DataFrame) -> pd.DataFrame:
    """Returns the measured value of each cell of a table with each seed.

    Args:
        table: the table.
        results: measurements of any runs, as ``load_results`` returns them.

    Returns:
        A DataFrame with the columns of ``results``, ``cell`` (the index in ``table.cells``) and
        ``is_measured`` (whether the run has a value, which may be NaN for a diverged run). A cell with runs
        has one line per planned seed. A cell that combines others has one line per seed that all of these
        have measured.
    """
    planned = pd.DataFrame(
        [
            (i, cell.evaluation, cell.metric, *_key(run))
            for i, cell in enumerate(table.cells)
            for run in measuring_runs(cell, results)
        ],
        columns=["cell", "evaluation", "metric", *RUN],
    ).drop_duplicates(["cell", "seed"], keep="last")
    results = results[results["experiment"].isin(table.experiments)]
    results = results.sort_values("method", key=lambda names: names.map(METHOD_ORDER), kind="stable")
    results = results.assign(method=results["method"].map(canonical)).astype({"seed": object})
    runs = results.drop_duplicates(RUN)[[*RUN, *STATE]]
    columns = ["folder", "evaluation", "metric", "value", "signature"]
    measured = results.dropna(subset="metric")[columns].assign(is_measured=True)
    values = planned.astype({"seed": object}).merge(runs, "left", on=RUN)
    values = values.merge(measured, "left", on=columns[:3])
    values["is_measured"] = values["is_measured"].notna()
    positions = {id(cell): i for i, cell in enumerate(table.cells)}
    combined = [
        _combine(cell, values[values["cell"].isin([positions[id(part)] for part in cell.parts])])
        for cell in table.cells
        if cell.parts
    ]
    cells = [i for i, cell in enumerate(table.cells) if cell.parts]
    combined = [frame.assign(cell=i, is_measured=True) for i, frame in zip(cells, combined, strict=True)]
    return pd.concat([values, *(frame for frame in combined if len(frame))], ignore_index=True)


def measuring_runs(cell: Cell, results: pd.DataFrame) -> list[Run]:
    """Returns the runs that measure a cell: all of them, or those of the best of its ``trials``.

    The best trial has the best mean score over the seeds with which every trial is measured. For another
    seed, the run is one that is not measured, so that the cell has no value for this seed.

    Args:
        cell: the cell.
        results: measurements of any runs, as ``load_results`` returns them.
    """
    if not cell.trials:
        return cell.runs
    found = results[(results["evaluation"] == cell.score[0]) & (results["metric"] == cell.score[1])]
    found = found.assign(method=found["method"].map(canonical))
    sign = 1 if cell.kind.metrics[cell.score[1]] == "higher" else -1
    values = dict(zip(found[RUN].itertuples(index=False, name=None), sign * found["value"], strict=True))
    by_seed = list(zip(*cell.trials, strict=True))
    scores = [[values.get(_key(run)) for run in runs] for runs in by_seed]
    complete = [seed for seed in scores if None not in seed]
    means = [statistics.fmean(trial) for trial in zip(*complete, strict=True)] or [0.0]
    best = max(range(len(means)), key=lambda i: -math.inf if math.isnan(means[i]) else means[i])
    return [
        runs[seed.index(None) if None in seed else best] for runs, seed in zip(by_seed, scores, strict=True)
    ]


def _key(run):
    """Returns the values of a run in the columns ``RUN``."""
    changes = ", ".join(f"{key}={value}" for key, value in run.changes)
    return run.experiment, run.attention, canonical(run.method), changes, run.seed


def _combine(cell: Cell, parts: pd.DataFrame) -> pd.DataFrame:
    """Returns the columns seed and value of a cell that combines ``parts``, for the seeds of all parts."""
    by_seed = parts[parts["is_measured"]].groupby("seed")["value"]
    how = {"higher": "max", "lower": "min"}[cell.better] if cell.is_best else statistics.fmean
    return by_seed.agg(how)[by_seed.size() == len(cell.parts)].reset_index()


def summarize(table: Table, results: pd.DataFrame) -> pd.DataFrame:
    """Returns a DataFrame with one line per cell of the table, in the order of ``table.cells``.

    Args:
        table: the table.
        results: measurements of any runs, as ``load_results`` returns them.

    Returns:
        A DataFrame with the columns

        - attention, row, method, column, measured_on (the experiment), metric, better
        - paper, paper_std: the published mean and standard deviation
        - mean, std: the mean over the measured seeds (not finite if a run diverged) and the sample standard
          deviation, both without the worst of three or more seeds if ``drop_worst`` is set
        - seeds, planned: the numbers of measured and planned seeds
        - state: "3" or "2 of 3" measured seeds, or without any, the state of the run that got furthest,
          "damaged", or "-" if no run was started
        - chosen: the changes of the trial that measures a cell with ``choose_once``, if it has a value
        - length, unit: the length of the measured trainings if all have the same
        - lengths, started_lengths: tuples of (length, unit) of the measured, and of all started trainings
        - signatures: a tuple of sacreBLEU's signatures of the metric
        - is_apart: whether the length of the trainings differs from the most frequent one of the column
        - is_ranked: whether the mean is finite and ``is_apart`` is false
        - is_comparable: whether ``is_ranked`` is true, and there is a published number
        - is_best, paper_is_best: whether the mean, or the published number, is the best one of the column and
          attention; false if all of them are equal
        - paper_rank, rank: the ranks of the published number and of the mean among the comparable cells of
          the column and attention, if there are two or more; 1 is best
        - difference, low, high, common_seeds: the mean difference to the baseline over the seeds of both, its
          95% confidence interval (Student t), and the number of these seeds, if both have the same length
        - decimals: the number of decimals that are shown
    """
    positions = {id(cell): i for i, cell in enumerate(table.cells)}
    seeds = {i: [] for i in range(len(table.cells))}  # lists, since pandas is slow for a few lines per cell
    for line in seed_values(table, results).itertuples():
        seeds[line.cell].append(line)
    parts = {i: [positions[id(part)] for part in cell.parts] for i, cell in enumerate(table.cells)}
    lengths = {i: _lengths(line for line in seeds[i] if line.is_measured) for i in seeds}
    by_part = {i: [lengths[j] for j in parts[i]] or [lengths[i]] for i in seeds}
    apart = _trained_differently(table, lengths, parts)
    lines = []
    for i, cell in enumerate(table.cells):
        base = table.baseline(cell)
        base = None if base is None else positions[id(base)]
        is_same = base is not None and by_part[i] == by_part[base] and all(len(x) == 1 for x in by_part[i])
        planned = min(len(seeds[j]) for j in parts[i] or [i])
        line = _summarize_cell(cell, seeds[i], planned) | {"is_apart": apart[i]}
        line["lengths"] = _in_order(set().union(*by_part[i]))
        line["length"], line["unit"] = line["lengths"][0] if len(line["lengths"]) == 1 else (math.nan, None)
        lines.append(line | difference(_measured(seeds[i]), _measured(seeds[base]) if is_same else {}))
    summary = pd.DataFrame(lines)
    summary["is_ranked"] = summary["mean"].map(math.isfinite) & ~summary["is_apart"]
    _add_ranks(summary)
    return summary


def _measured(lines):
    """Returns {seed: value} of the measured lines."""
    return {line.seed: line.value for line in lines if line.is_measured}


def _lengths(lines):
    """Returns the set of the lengths of trainings, such as {(400, "updates")}."""
    return {(line.length, line.unit) for line in lines if isinstance(line.unit, str)}


def _in_order(lengths):
    """Returns lengths of trainings as a tuple, the shortest first."""
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


def _trained_differently(table, lengths, parts):
    """Returns {cell: whether the length of its trainings differs from the column's most frequent one}."""
    apart = {}
    for column in dict.fromkeys(cell.column for cell in table.cells):
        cells = [i for i, cell in enumerate(table.cells) if cell.column == column]
        usual = Counter(frozenset(lengths[i]) for i in cells if len(lengths[i]) == 1).most_common(1)
        apart |= {i: bool(lengths[i]) and [lengths[i]] != [set(found) for found, _ in usual] for i in cells}
    return {i: any(apart[j] for j in parts[i]) if parts[i] else apart[i] for i in apart}


def _summarize_cell(cell, lines, planned):
    """Returns the columns of ``summarize`` that depend on a single cell."""
    sign = -1 if cell.better == "higher" else 1
    # A diverged run, whose value is NaN, is the worst one.
    values = sorted(_measured(lines).values(), key=lambda value: (math.isnan(value), sign * value))
    mean, std = mean_and_std(values[:-1] if cell.drop_worst and len(values) > 2 else values)
    state = f"{len(values)}" if len(values) == planned else f"{len(values)} of {planned}"
    paper, paper_std = cell.published or (None, None)
    return {
        "attention": cell.attention,
        "row": cell.row,
        "method": cell.method or "",
        "column": cell.column,
        "measured_on": cell.experiment,
        "metric": cell.metric,
        "better": cell.better,
        "paper": math.nan if paper is None else paper,
        "paper_std": math.nan if paper_std is None else paper_std,
        "mean": mean,
        "std": std,
        "seeds": len(values),
        "planned": planned,
        "state": state if values else _state(lines),
        "chosen": next((line.changes for line in lines if cell.trials and line.is_measured), None),
        "started_lengths": _in_order(_lengths(lines)),
        "signatures": tuple({line.signature: 0 for line in lines if isinstance(line.signature, str)}),
        "decimals": (cell.kind or Kind).decimals.get(cell.metric, 2),
    }


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the sample standard deviation, which are NaN if they are undefined."""
    std = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan
    return statistics.fmean(values) if len(values) else math.nan, std


def _state(lines):
    """Returns the state of the unfinished run that got furthest, "damaged", or "-" if no run was started."""
    started = [line for line in lines if isinstance(line.state, str)]
    readable = [line for line in started if line.state != "damaged"]
    if not readable:
        return "damaged" if started else "-"
    furthest = max(readable, key=lambda line: (line.state == "running", line.reached))
    state = describe_state(furthest.state, furthest.reached, furthest.updates)
    return "not measured" if state == "finished" else state


def _add_ranks(summary):
    """Adds the columns is_best, paper_is_best, paper_rank and rank."""
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
    ranked = summary.dropna(subset=["paper_rank", "rank"])
    found = {}
    for group, rows in ranked.groupby(["attention", "column"], sort=False):
        is_defined = len(rows) > 2 and rows["paper_rank"].nunique() > 1 and rows["rank"].nunique() > 1
        found[group] = rows["paper_rank"].corr(rows["rank"]) if is_defined else math.nan
    return found


def difference(ours: dict, base: dict) -> dict[str, float]:
    """Returns the mean of ours - base over the common seeds, with its 95% confidence interval.

    The arguments are {seed: value}. The result has the keys difference, low, high and common_seeds.
    """
    from scipy.stats import t

    pairs = [ours[seed] - base[seed] for seed in ours if seed in base]
    mean = statistics.fmean(pairs) if pairs else math.nan
    with np.errstate(invalid="ignore"):  # if a run diverged
        error = pd.Series(pairs, dtype=float).sem()  # NaN for fewer than two seeds
        half = t.ppf(0.975, len(pairs) - 1) * error
    return {"difference": mean, "low": mean - half, "high": mean + half, "common_seeds": len(pairs)}


def summarize_runs(results: pd.DataFrame) -> pd.DataFrame:
    """Summarizes the runs of one experiment over their seeds.

    Args:
        results: measurements of one experiment, as ``load_results`` returns them.

    Returns:
        A DataFrame with one line per attention, method, changes, evaluation and metric. The further columns
        are length (such as "400 updates"), seeds, mean, std, measured_seeds, state (of the unfinished seeds)
        and decimals. Runs without measurements have one line without a metric.
    """
    lines = []
    order = results["method"].map(METHOD_ORDER).rename("order")
    for (attention, _, method, changes), runs in results.groupby(
        ["attention", order, "method", "changes"], dropna=False
    ):
        seeds = runs.drop_duplicates("folder")
        row = {"attention": attention, "method": method, "changes": changes}
        about = {"length": describe_lengths(_in_order(_lengths(seeds.itertuples()))), "seeds": len(seeds)}
        unfinished = seeds[seeds["state"] != "finished"].itertuples()
        states = [f"seed {run.seed} {_describe_run(run)}" for run in unfinished]
        about["state"] = "; ".join(states) or "finished"
        measured = runs[runs["metric"].notna() & ~runs["metric"].str.endswith("_per_second", na=False)]
        for (evaluation, metric), found in measured.groupby(["evaluation", "metric"], sort=False):
            mean, std = mean_and_std(found["value"])
            numbers = {"mean": mean, "std": std, "measured_seeds": len(found)}
            numbers["decimals"] = KINDS[found["kind"].iloc[0]].decimals.get(metric, 2)
            lines.append({**row, "evaluation": evaluation, "metric": metric, **about, **numbers})
        if measured.empty:
            lines.append({**row, **about, "measured_seeds": 0})
    return pd.DataFrame(lines, columns=[*RUNS_CSV, "decimals"])


def _describe_run(run):
    """Returns the state of an unfinished run in words."""
    if run.state == "damaged":
        return f"damaged ({run.problem})"
    return describe_state(run.state, run.reached, run.updates)
