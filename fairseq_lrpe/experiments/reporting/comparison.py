"""The comparison of two runs: their settings, the flags of their methods, and their measurements."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from fairseq_lrpe.experiments.definition.run import experiment_of, is_seed
from fairseq_lrpe.experiments.reporting import aggregate, renderers
from fairseq_lrpe.experiments.reporting.differences import INTERVALS, Differences
from fairseq_lrpe.experiments.reporting.recorded_results import is_recorded, read_recorded
from fairseq_lrpe.experiments.reporting.records import read_run
from fairseq_lrpe.experiments.reporting.renderers import Section
from fairseq_lrpe.experiments.reporting.run_record import RunRecord, readable
from fairseq_lrpe.experiments.reporting.settings import flat_texts
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.numbers import format_number

IGNORED = ("seed", "started", "config.seeds", "config.source", "rendezvous")
"""Settings in run.json that do not distinguish runs in a comparison."""
EXAMPLE = "pass one such as results/lm/mini/linear_rope/seed-1"


def read_seeds(folder: Path) -> list[RunRecord]:
    """Returns the records of all seeds of a run, including damaged ones.

    Args:
        folder: the folder of one seed, or the folder that contains the folders of all seeds. Recorded runs
            have no folders of their own: theirs is the one that they would have in the recorded results.

    Raises:
        UserError: if the folder is not that of a run, or all seeds are damaged.
    """
    parent = folder.parent if folder.name.startswith("seed-") else folder
    if not parent.is_dir():
        recorded = next(filter(is_recorded, parent.parents), None)
        if recorded is not None:
            return _recorded_seeds(parent, recorded)
        raise UserError(f"{folder} does not exist: {EXAMPLE}")
    results = _results_folder(parent)
    folders = sorted(path for path in parent.iterdir() if is_seed(path) and path.is_dir())
    if results is None or not folders:
        raise UserError(f"{folder} is not the folder of a run: {EXAMPLE}")
    records = [read_run(path, results) for path in folders]
    if not readable(records):
        raise UserError(f"{records[0].folder} cannot be read: {records[0].problem}")
    return records


def _recorded_seeds(folder, recorded):
    """Returns the records of all seeds of the run that would have the folder ``folder``."""
    found = read_recorded(recorded, lambda run: (recorded / str(run)).parent == folder)
    if not found:
        raise UserError(
            f"{recorded} has no record of {folder.relative_to(recorded)}: `lrpe results` shows them"
        )
    return found


def _results_folder(folder):
    """Returns the results folder that contains the folder of a run's seeds, or None."""
    for parent in folder.parents:
        if experiment_of(folder / "seed-1", parent):
            return parent
    return None


def different_settings(a: list[RunRecord], b: list[RunRecord]) -> pd.DataFrame:
    """Returns the settings in which two runs differ, as a DataFrame with the columns setting, a and b.

    The flags of the methods are settings, too. If the seeds of a run have different values, all are listed.
    """
    settings = [_settings_of_seeds(a), _settings_of_seeds(b)]
    frame = pd.DataFrame(settings, index=["a", "b"], dtype=object).T.fillna("-")
    frame = frame[(frame["a"] != frame["b"]) & ~frame.index.isin(IGNORED)]
    return frame.reset_index(names="setting")


def _settings_of_seeds(records):
    """Returns {key: text} of a run's settings and flags; different values of its seeds are joined by "or"."""
    values = {}
    for record in records:
        settings = dict(record.settings)
        for name, value in method_flags(record).items():
            settings[f"method.{name}"] = value
        for key, text in flat_texts(settings).items():
            values.setdefault(key, {})[text] = None
    joined = {}
    for key, texts in values.items():
        joined[key] = " or ".join(texts)
    return joined


def method_flags(record: RunRecord) -> dict[str, object]:
    """Returns {flag: value} of a run's flags of attention, encoding and token positions.

    Values are taken from the run's settings, or else from the method, or else from the models' defaults.
    Options of other encodings are left out.
    """
    from fairseq_lrpe.config import PositionConfig, option_flag
    from fairseq_lrpe.encodings import ENCODINGS, encoding_options

    config = record.settings["config"]
    method = METHODS.get(record.run.method)
    if method is None:  # such as fairseq's own models
        return {}
    encodings = {}  # {option: the encoding that has it}
    for encoding, cls in ENCODINGS.items():
        for option in encoding_options(cls):
            encodings[option_flag(encoding, option)] = encoding
    given = {
        **method.flags,
        **config.get("train", {}),
        **config.get("by_method", {}).get(record.run.method, {}),
    }
    flags = {}
    for name, default in vars(PositionConfig()).items():
        applies = encodings.get(name) in (None, given.get("encoding", "none"))
        if applies and name not in ("_name", "attention"):
            flags[name] = given.get(name, default)
    return flags


def comparison_sections(a: Path, b: Path) -> Iterator[str | Section]:
    """Yields the parts of a printed comparison of the runs in two folders."""
    ours = read_seeds(a)
    theirs = read_seeds(b)
    runs = [readable(ours), readable(theirs)]
    for name, records in zip("ab", runs, strict=True):
        numbers = ", ".join(str(record.run.seed) for record in records)
        yield f"{name}: {records[0].folder.parent} (seeds {numbers})"
    for record in (*ours, *theirs):
        if record.problem is not None:
            yield f"omitted: {record.folder} cannot be read: {record.problem}"
    settings = different_settings(*runs)
    yield Section("settings that differ", settings) if len(settings) else "no settings differ"
    values_a, values_b = map(aggregate.values_by_metric, runs)
    kind = runs[0][0].kind
    lines = []
    for key in values_a | values_b:
        _, metric = key
        cells = _compare(values_a.get(key, {}), values_b.get(key, {}), metric, kind.decimals_of(metric))
        lines.append((*key, *cells))
    title = f"mean ± sample standard deviation; b - a: difference [{INTERVALS}] (common seeds), each line "
    title += "for itself: not corrected for the number of lines, nor for a choice among several runs"
    frame = pd.DataFrame(lines, columns=["evaluation", "metric", "a", "b", "b - a"])
    yield Section(title, frame) if lines else "neither run has measurements"


def _compare(a, b, metric, digits):
    """Returns the means of two runs and their difference as text; ``a`` and ``b`` are {seed: value}."""
    difference = Differences({"a": a, "b": b}, metric).between("b", "a")
    change = "no common seed"
    if difference["common_seeds"]:
        change = renderers.format_difference(SimpleNamespace(**difference, decimals=digits))
    return _mean(a, digits), _mean(b, digits), change


def _mean(values, digits):
    if not values:
        return "-"
    mean, std = aggregate.mean_and_std(list(values.values()))
    return format_number(mean, digits, std)
