"""Validation of a folder of recorded results, such as a contribution's, before it becomes part of others."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pandas as pd

from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.reporting import recorded_results
from fairseq_lrpe.experiments.reporting.number_rules import (
    curve_problems,
    fingerprint,
    measurement_problems,
)
from fairseq_lrpe.experiments.reporting.record_changes import line_changes, number_changes
from fairseq_lrpe.experiments.reporting.recorded_results import MEASUREMENTS, POINTS, WEIGHTS, row_text
from fairseq_lrpe.experiments.reporting.run_record import row_key
from fairseq_lrpe.experiments.reporting.settings import compared, configured_settings, different_settings
from fairseq_lrpe.experiments.reporting.settings_rules import NewRunSettings, RunSettings, settings_problems

FILES = {
    "measurements": ("measurements/[!.]*.csv", MEASUREMENTS),
    "curve points": ("curves/[!.]*.csv", POINTS),
    "attention weights": ("attention_weights.csv", WEIGHTS),
}
"""{what files contain: (their names, their columns)}"""


def validate(folder: Path, base: Path | None = None) -> list[str]:
    """Returns a line for each problem of a folder of recorded results.

    Runs that ``base`` contains are only compared with it. All others must comply with the rules in
    ``settings_rules`` and ``number_rules``, have the settings that configs defines, and be measured on the
    data of the other runs of their experiment. Without ``base``, no run is considered new.

    Raises:
        UserError: if a folder has no recorded results, or a file is damaged.
    """
    lines = _read_lines(folder)
    numbers = _read_numbers(folder)
    problems = []
    before = {}
    model = RunSettings
    if base is not None:
        before = _read_lines(base)
        model = NewRunSettings
        problems += line_changes(before, lines)
        for content, earlier in _read_numbers(base).items():
            problems += number_changes(content, earlier, numbers[content], lines)
    problems += _file_problems(folder, before | lines)
    checked = [run for run in lines if run not in before]
    configured = configured_settings(checked)
    usual = _usual_metrics(lines, numbers["measurements"])
    # Runs of the base come first: others must have their data, and are the copies of equal ones.
    ordered = {run: lines[run] for run in [*before, *lines] if run in lines}
    shared = _shared_problems(ordered, numbers)
    for run in checked:
        line = lines[run]
        points = _curve(run, numbers)
        defined = configured.get(run)
        rows = numbers["measurements"].get(row_key(run), {})
        for text in chain(
            settings_problems(line, model),
            _differences(run, line, defined),
            shared.get(run, ()),
            measurement_problems(rows, line, _evaluations(defined), usual[run.experiment, run.changes]),
            curve_problems(points, line),
        ):
            problems.append(f"{run}: {text}")
    known = {row_key(run) for run in before | lines}
    for content, by_run in numbers.items():
        for key in by_run:
            if key not in known:
                problems.append(f"{row_text(key)}: {content} without a line in settings/")
    return problems


def _read_lines(folder):
    """Returns {run: its line in settings/}."""
    recorded_results.check_recorded(folder)
    return recorded_results.read_settings(folder)


def _read_numbers(folder):
    """Returns {what files contain: {row_key(run): {names of a number: the number and its signature}}}."""
    numbers = {}
    for content, (pattern, columns) in FILES.items():
        names = columns.index("value") - len(recorded_results.RUN)
        numbers[content] = {}
        for key, rows in recorded_results.read_by_run(folder.glob(pattern), columns).items():
            numbers[content][key] = {row[:names]: row[names:] for row in rows}
    return numbers


def _file_problems(folder, lines) -> Iterator[str]:
    """Yields a line for each file with columns that reading ignores, or that recording would not update."""
    written = set()
    for run in lines:
        written.add(folder / recorded_results.settings_file(run.experiment))
        written.add(folder / recorded_results.measurements_file(run.experiment, run.attention))
        written.add(folder / recorded_results.curves_file(run.experiment))
    for pattern in ("settings/[!.]*.jsonl", "measurements/[!.]*.csv", "curves/[!.]*.csv"):
        for path in sorted(folder.glob(pattern)):
            if path not in written:
                yield f"{path.relative_to(folder)}: no recorded experiment has this name"
    for pattern, columns in FILES.values():
        for path in sorted(folder.glob(pattern)):
            unknown = [name for name in pd.read_csv(path, nrows=0).columns if name not in columns]
            if unknown:
                yield f"{path.relative_to(folder)}: unknown columns {', '.join(unknown)}"


def _curve(run, numbers):
    """Returns {updates: value} of a run's curve."""
    points = numbers["curve points"].get(row_key(run), {})
    return {updates: value for (updates,), (value,) in points.items()}


def _evaluations(defined):
    """Returns the names of the evaluations in settings that :func:`configured_settings` returns, or None."""
    return set(defined or ()) - {""}


def _differences(run, line, defined) -> Iterator[str]:
    """Yields the differences of a run's settings from ``defined``, those in configs."""
    evaluations = line["evaluations"]
    unknown = set() if defined is None else evaluations.keys() - defined.keys()
    for name in sorted(unknown):
        yield f"its evaluation {name} is not defined in configs"
    settings = compared(line["config"], run.method, evaluations)
    for name in evaluations:
        settings.setdefault(name, {})  # one without settings differs, too
    for name, texts in different_settings(settings, defined).items():
        if name not in unknown:
            for text in texts:
                yield f"its settings differ from those in configs: {text}"


def _usual_metrics(lines, measurements):
    """Returns {(experiment, changes): {(evaluation, metric) that a run has}}."""
    usual = {}
    for run in lines:
        names = usual.setdefault((run.experiment, run.changes), set())
        names.update(measurements.get(row_key(run), ()))
    return usual


def _shared_problems(lines, numbers):
    """Returns {run: texts} about data other than that of the first run of ``lines``, and copied numbers."""
    problems = {}
    for run, other in recorded_results.runs_on_other_data(lines):
        problems.setdefault(run, []).append(f"it was trained on other data than {other} (data)")
    owners = {}
    for run, line in lines.items():
        rows = numbers["measurements"].get(row_key(run), {})
        own = fingerprint(rows, _curve(run, numbers))
        if own and not endings.is_diverged(line):
            owner = owners.setdefault((replace(run, seed=0), own), run)
            if owner != run:
                problems.setdefault(run, []).append(f"all its numbers are those of {owner}")
    return problems
