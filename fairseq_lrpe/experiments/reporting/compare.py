"""Comparison of two runs: their settings, and their measurements over the seeds."""

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.reporting.aggregate import difference, mean_and_std
from fairseq_lrpe.experiments.reporting.records import RunRecord, flatten, read_run
from fairseq_lrpe.experiments.reporting.renderers import Section, format_number
from fairseq_lrpe.experiments.spec.kinds import KINDS
from fairseq_lrpe.experiments.spec.run import experiment_of

IGNORED = ("seed", "started", "config.seeds", "config.source", "rendezvous")
"""Settings in run.json that do not distinguish runs."""


def read_seeds(folder: Path) -> dict[int | str, RunRecord]:
    """Returns {seed: record} of a run.

    Args:
        folder: the folder of a run, RESULTS/EXPERIMENT/ATTENTION_METHOD/[KEY=VALUE/]seed-SEED, of which all
            other seeds are also read, or the folder that contains its seeds.

    Raises:
        ValueError: the folder is neither.
    """
    parent = folder.parent if folder.name.startswith("seed-") else folder
    results = next((path for path in parent.parents if experiment_of(parent / "seed-1", path)), None)
    folders = sorted(path for path in parent.glob("seed-*") if path.is_dir())
    if results is None or not folders:
        raise ValueError(f"{folder} is not the folder of a run, such as results/lm/mini/linear_rope/seed-1")
    records = [read_run(path, results) for path in folders]
    if damaged := next((record for record in records if record.problem), None):
        raise ValueError(f"{damaged.folder} cannot be read: {damaged.problem}")
    return {record.seed: record for record in records}


def different_settings(a: RunRecord, b: RunRecord) -> pd.DataFrame:
    """Returns the settings in which two runs differ, with the columns setting, a and b."""
    ours, theirs = (dict(flatten(record.settings)) for record in (a, b))
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if key not in IGNORED]
    lines = [(key, ours.get(key, "-"), theirs.get(key, "-")) for key in keys]
    return pd.DataFrame([line for line in lines if line[1] != line[2]], columns=["setting", "a", "b"])


def compare_measurements(a: dict[int | str, RunRecord], b: dict[int | str, RunRecord]) -> pd.DataFrame:
    """Compares the measurements of two runs over their seeds.

    Returns:
        A DataFrame with one line per evaluation and metric. Its columns are evaluation, metric, a_mean,
        a_std, b_mean, b_std, decimals, and the mean of b - a over the common seeds: difference, low and high
        (its 95% confidence interval, Student's t) and common_seeds.
    """
    values = [
        {
            (evaluation, metric, seed): value
            for seed, record in records.items()
            for evaluation, metric, value, _ in record.measurements()
        }
        for records in (a, b)
    ]
    kind, lines = KINDS[next(iter(a.values())).settings["kind"]], []
    for evaluation, metric in dict.fromkeys(key[:2] for found in values for key in found):
        ours, theirs = (
            {seed: value for (*key, seed), value in found.items() if key == [evaluation, metric]}
            for found in values
        )
        statistics = [*mean_and_std(list(ours.values())), *mean_and_std(list(theirs.values()))]
        line = {"evaluation": evaluation, "metric": metric}
        line |= dict(zip(("a_mean", "a_std", "b_mean", "b_std"), statistics, strict=True))
        lines.append(line | difference(theirs, ours) | {"decimals": kind.decimals.get(metric, 2)})
    return pd.DataFrame(lines)


def comparison_sections(a: Path, b: Path) -> Iterator[str | Section]:
    """Yields the parts of a printed comparison of the runs in two folders."""
    runs = [read_seeds(folder) for folder in (a, b)]
    for name, records in zip("ab", runs, strict=True):
        seeds = ", ".join(str(seed) for seed in records)
        yield f"{name}: {next(iter(records.values())).folder.parent} (seeds {seeds})"
    settings = different_settings(*(next(iter(records.values())) for records in runs))
    yield Section("settings that differ", settings) if len(settings) else "no settings differ"
    measured = compare_measurements(*runs)
    if measured.empty:
        yield "neither run has measurements"
        return
    lines = [
        (
            row.evaluation,
            row.metric,
            format_mean(row.a_mean, row.a_std, row.decimals),
            format_mean(row.b_mean, row.b_std, row.decimals),
            format_difference(row),
        )
        for row in measured.itertuples()
    ]
    frame = pd.DataFrame(lines, columns=["evaluation", "metric", "a", "b", "b - a"])
    yield Section(
        "mean ± sample standard deviation; b - a: mean [95% confidence interval] (common seeds)", frame
    )


def format_mean(mean: float, std: float, decimals: int) -> str:
    """Returns a mean with its standard deviation as text, or "-" if nothing was measured."""
    return "-" if math.isnan(mean) and math.isnan(std) else format_number(mean, std, decimals)


def format_difference(row) -> str:
    """Returns the paired difference of a line of ``compare_measurements`` as text."""
    if not row.common_seeds:
        return "no common seed"
    mean, low, high = (f"{x:+,.{row.decimals}f}" for x in (row.difference, row.low, row.high))
    return f"{mean} [{low}, {high}] ({row.common_seeds})" if row.common_seeds > 1 else f"{mean} (1)"
