"""Validation of a folder of recorded results, such as a contribution's, before it becomes part of others."""

import re
from collections.abc import Iterator
from pathlib import Path

from fairseq_lrpe.experiments.reporting import recorded_results
from fairseq_lrpe.experiments.reporting.recorded_results import MEASUREMENTS, POINTS, WEIGHTS
from fairseq_lrpe.experiments.reporting.run_record import row_key

FILES = {
    "measurements": ("measurements/[!.]*.csv", MEASUREMENTS),
    "curves": ("curves/[!.]*.csv", POINTS),
    "attention weights": ("attention_weights.csv", WEIGHTS),
}
"""{what files contain: (their names, their columns)}"""
VERSIONS = ("torch", "fairseq_lrpe")
"""The packages whose versions determine the digits of a result."""
MACHINE = re.compile(r"\d+ × \S|CPU \(\S")
"""The beginning of a recorded machine that names its GPUs or its CPU."""


def validate(folder: Path, base: Path | None = None) -> list[str]:
    """Returns a line for each problem of a folder of recorded results.

    A problem is a run whose settings are not those of configs, or which names no versions, data or hardware;
    numbers and curves without their run, or a run without them; and a difference from the records of
    ``base``, if it is given. Runs that ``base`` contains are only compared with it.

    Raises:
        UserError: if a folder has no recorded results, or a file is damaged.
    """
    lines = _read_lines(folder)
    numbers = _read_numbers(folder)
    problems = []
    before = {}
    if base is not None:
        before = _read_lines(base)
        problems += _changes(before, lines, _read_numbers(base), numbers)
    for record in recorded_results.read_recorded(folder):
        if record.run not in before:
            settings_problems = [record.problem] if record.problem else record.omitted
            for text in settings_problems:
                problems.append(f"{record.run}: its settings differ from those in configs: {text}")
            for text in _line_problems(lines[record.run]):
                problems.append(f"{record.run}: {text}")
            for text in _number_problems(record, numbers):
                problems.append(f"{record.run}: {text}")
    known = {row_key(run) for run in lines}
    for content, by_run in numbers.items():
        for key in by_run:
            if key not in known:
                problems.append(f"{_run_text(key)}: {content} without a line in settings/")
    return problems


def _read_lines(folder):
    """Returns {run: its line in settings/}."""
    recorded_results.check_recorded(folder)
    return recorded_results.read_settings(folder)


def _read_numbers(folder):
    """Returns {what files contain: {row_key(run): {names of a number: text of the number}}}."""
    numbers = {}
    for content, (pattern, columns) in FILES.items():
        names = columns.index("value") - len(recorded_results.RUN)
        numbers[content] = {}
        for key, rows in recorded_results.read_by_run(folder.glob(pattern), columns).items():
            # Texts are compared, because NaN differs from itself.
            numbers[content][key] = {row[:names]: " ".join(map(str, row[names:])) for row in rows}
    return numbers


def _line_problems(line) -> Iterator[str]:
    """Yields what a line of settings/ does not name."""
    for package in VERSIONS:
        if not line.get("versions", {}).get(package):
            yield f"its settings name no version of {package} (versions)"
    if not line.get("data"):
        yield "its settings name no data (data)"
    if not MACHINE.match(line.get("machine", "")):
        yield f"its settings name no CPU or GPU (machine is {line.get('machine', '')!r})"


def _number_problems(record, numbers) -> Iterator[str]:
    """Yields the evaluations without numbers of a run, and what is wrong with its curve."""
    key = row_key(record.run)
    measured = {evaluation for evaluation, _ in numbers["measurements"].get(key, ())}
    evaluated = set(record.settings["evaluations"])
    if not measured:
        yield "it has no measurements"
    for name in sorted(evaluated - measured):
        yield f"its evaluation {name} has settings, but no measurements"
    for name in sorted(measured - evaluated - {"training"}):
        yield f"its evaluation {name} has measurements, but no settings"
    updates = [number for (number,) in numbers["curves"].get(key, ())]
    validates = record.kind.curve and not record.settings["config"].get("train.disable_validation")
    if validates and record.updates and not updates and not record.is_diverged:
        yield "it has no curve"
    if updates and max(updates) > record.updates:
        yield f"its curve ends at update {max(updates)}, after the {record.updates} updates of its training"


def _changes(before, lines, old_numbers, numbers) -> Iterator[str]:
    """Yields the differences of runs and numbers from earlier ones, to which new ones may be added."""
    for run, line in before.items():
        if run not in lines:
            yield f"{run}: it is removed"
        elif line != lines[run]:
            now = lines[run]
            names = [name for name in line.keys() | now.keys() if line.get(name) != now.get(name)]
            yield f"{run}: its recorded {', '.join(sorted(names))} changed"
    for content, by_run in old_numbers.items():
        for key, values in by_run.items():
            now = numbers[content].get(key, {})
            for names, value in values.items():
                if now.get(names) != value:
                    name = " ".join(map(str, names))
                    yield f"{_run_text(key)}: {content} {name} was {value}, now {now.get(names, 'missing')}"


def _run_text(key):
    experiment, attention, method, changes, seed = key
    return "/".join(filter(None, (experiment, f"{attention}_{method}", changes, f"seed-{seed}")))
