"""Compares two runs: their settings, the flags of their methods, and their measurements."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from fairseq_lrpe.experiments.definition.run import experiment_of, is_seed
from fairseq_lrpe.experiments.reporting import aggregate, renderers
from fairseq_lrpe.experiments.reporting.differences import INTERVALS, Differences
from fairseq_lrpe.experiments.reporting.records import read_run
from fairseq_lrpe.experiments.reporting.renderers import Section, format_number
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.experiments.reporting.settings import flat_texts
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.errors import UserError

IGNORED = ("seed", "started", "config.seeds", "config.source", "rendezvous")
"""Settings in run.json that do not distinguish runs in a comparison."""


def read_seeds(folder: Path) -> list[RunRecord]:
    """Returns the records of all seeds of a run, damaged ones too, given its folder or that of a seed.

    Raises:
        UserError: if the folder is not a run's, or all seeds are damaged.
    """
    parent = folder.parent if folder.name.startswith("seed-") else folder
    results = next((path for path in parent.parents if experiment_of(parent / "seed-1", path)), None)
    folders = sorted(path for path in parent.iterdir() if is_seed(path) and path.is_dir())
    if results is None or not folders:
        raise UserError(f"{folder} is not the folder of a run, such as results/lm/mini/linear_rope/seed-1")
    records = [read_run(path, results) for path in folders]
    if all(record.problem is not None for record in records):
        raise UserError(f"{records[0].folder} cannot be read: {records[0].problem}")
    return records


def different_settings(a: list[RunRecord], b: list[RunRecord]) -> pd.DataFrame:
    """Returns the settings in which two runs differ, with the columns setting, a and b.

    The flags of their methods are settings, too. If seeds have different values, all of these are listed.
    """
    settings = [_settings_of_seeds(records) for records in (a, b)]
    frame = pd.DataFrame(settings, index=["a", "b"], dtype=object).T.fillna("-")
    frame = frame[(frame["a"] != frame["b"]) & ~frame.index.isin(IGNORED)]
    return frame.reset_index(names="setting")


def _settings_of_seeds(records):
    found = {}
    for record in records:
        flags = {f"method.{name}": value for name, value in method_flags(record).items()}
        for key, text in flat_texts(record.settings | flags).items():
            found.setdefault(key, {})[text] = None
    return {key: " or ".join(texts) for key, texts in found.items()}


def method_flags(record: RunRecord) -> dict[str, object]:
    """Returns {flag of attention, encoding and token positions: its value} of a run.

    The values are those of the run's settings, or else of the method, or else the defaults of the models.
    Options of other encodings are missing.
    """
    from fairseq_lrpe.config import PositionConfig, option_flag  # imports torch, which takes seconds
    from fairseq_lrpe.encodings import ENCODINGS, encoding_options

    config, method = record.settings["config"], METHODS.get(record.run.method)
    if method is None:  # such as fairseq's own models
        return {}
    options = {
        option_flag(name, option): name for name, of in ENCODINGS.items() for option in encoding_options(of)
    }
    given = {
        **method.flags,
        **config.get("train", {}),
        **config.get("by_method", {}).get(record.run.method, {}),
    }
    found = {}
    for name, default in vars(PositionConfig()).items():
        is_own = options.get(name) in (None, given.get("encoding", "none"))
        if is_own and name not in ("_name", "attention"):
            found[name] = given.get(name, default)
    return found


def comparison_sections(a: Path, b: Path) -> Iterator[str | Section]:
    """Yields the parts of a printed comparison of the runs in two folders."""
    found = [read_seeds(folder) for folder in (a, b)]
    runs = [[record for record in records if record.problem is None] for records in found]
    first = [records[0] for records in runs]
    for name, records, record in zip("ab", runs, first, strict=True):
        yield f"{name}: {record.folder.parent} (seeds {', '.join(str(of.run.seed) for of in records)})"
    for record in (record for records in found for record in records if record.problem is not None):
        yield f"omitted: {record.folder} cannot be read: {record.problem}"
    settings = different_settings(*runs)
    yield Section("settings that differ", settings) if len(settings) else "no settings differ"
    ours, theirs = map(aggregate.values_by_metric, runs)
    lines = []
    for evaluation, metric in dict.fromkeys([*ours, *theirs]):
        pair = [values.get((evaluation, metric), {}) for values in (ours, theirs)]
        digits = first[0].kind.decimals.get(metric, 2)
        means = [format_number(*aggregate.mean_and_std([*of.values()]), digits) if of else "-" for of in pair]
        difference = Differences(dict(zip("ab", pair, strict=True)), metric).between("b", "a")
        found = SimpleNamespace(**difference, decimals=digits)
        change = renderers.format_difference(found) if found.common_seeds else "no common seed"
        lines.append((evaluation, metric, *means, change))
    title = f"mean ± sample standard deviation; b - a: difference [{INTERVALS}] (common seeds), each line "
    title += "for itself: not corrected for the number of lines, nor for a choice among several runs"
    frame = pd.DataFrame(lines, columns=["evaluation", "metric", "a", "b", "b - a"])
    yield Section(title, frame) if lines else "neither run has measurements"
