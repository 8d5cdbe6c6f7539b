"""Comparison of two runs: their settings, and their measurements over the seeds."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.definition.run import experiment_of
from fairseq_lrpe.experiments.reporting.aggregate import difference, mean_and_std, values_by_metric
from fairseq_lrpe.experiments.reporting.records import RunRecord, flat_texts, read_run
from fairseq_lrpe.experiments.reporting.renderers import Section, format_difference, format_number
from fairseq_lrpe.utils.errors import UserError

IGNORED = ("seed", "started", "config.seeds", "config.source", "rendezvous")
"""Settings in run.json that do not distinguish runs."""


def read_seeds(folder: Path) -> list[RunRecord]:
    """Returns the records of a run's seeds.

    Args:
        folder: the folder of a run, RESULTS/EXPERIMENT/ATTENTION_METHOD/[KEY=VALUE/]seed-SEED, of which all
            other seeds are also read, or the folder that contains its seeds.

    Raises:
        UserError: the folder is neither.
    """
    parent = folder.parent if folder.name.startswith("seed-") else folder
    results = next((path for path in parent.parents if experiment_of(parent / "seed-1", path)), None)
    folders = sorted(path for path in parent.glob("seed-*") if path.is_dir())
    if results is None or not folders:
        raise UserError(f"{folder} is not the folder of a run, such as results/lm/mini/linear_rope/seed-1")
    records = [read_run(path, results) for path in folders]
    if damaged := next((record for record in records if record.problem), None):
        raise UserError(f"{damaged.folder} cannot be read: {damaged.problem}")
    return records


def different_settings(a: RunRecord, b: RunRecord) -> pd.DataFrame:
    """Returns the settings in which two runs differ, with the columns setting, a and b."""
    settings = [flat_texts(run.settings) for run in (a, b)]
    frame = pd.DataFrame(settings, index=["a", "b"], dtype=object).T.fillna("-")
    frame = frame[(frame["a"] != frame["b"]) & ~frame.index.isin(IGNORED)]
    return frame.reset_index(names="setting")


def comparison_sections(a: Path, b: Path) -> Iterator[str | Section]:
    """Yields the parts of a printed comparison of the runs in two folders."""
    runs = [read_seeds(folder) for folder in (a, b)]
    first = [records[0] for records in runs]
    for name, records, record in zip("ab", runs, first, strict=True):
        yield f"{name}: {record.folder.parent} (seeds {', '.join(str(of.run.seed) for of in records)})"
    settings = different_settings(*first)
    yield Section("settings that differ", settings) if len(settings) else "no settings differ"
    ours, theirs = map(values_by_metric, runs)
    lines = []
    for evaluation, metric in dict.fromkeys([*ours, *theirs]):
        pair = [values.get((evaluation, metric), {}) for values in (ours, theirs)]
        digits = first[0].kind.decimals.get(metric, 2)
        means = [format_number(*mean_and_std([*of.values()]), digits) if of else "-" for of in pair]
        found = difference(pair[1], pair[0])
        change = format_difference(*found.values(), digits) if found["common_seeds"] else "no common seed"
        lines.append((evaluation, metric, *means, change))
    title = "mean ± sample standard deviation; b - a: mean [95% confidence interval] (common seeds)"
    frame = pd.DataFrame(lines, columns=["evaluation", "metric", "a", "b", "b - a"])
    yield Section(title, frame) if lines else "neither run has measurements"
