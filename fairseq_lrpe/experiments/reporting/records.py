"""Reads run folders: what was run, how far it got, and what was measured."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from fairseq_lrpe.experiments.execution import progress
from fairseq_lrpe.experiments.execution.run_directory import is_locked, object_in, read_lines
from fairseq_lrpe.experiments.spec.kinds import KINDS, Kind
from fairseq_lrpe.experiments.spec.run import RECORDS, experiment_of

ERROR = re.compile(r"[\w.]*(Error|Exception)\b|fairseq_lrpe: ")  # the last line of a log after a failure
LOG_TAIL = 4096  # bytes of a log that are searched for its last line


@dataclass
class RunRecord:
    """The contents of a run folder.

    The first five fields come from the folder's path, so that damaged runs have them, too. If the files
    cannot be used, ``problem`` says why, and the fields after it are incomplete.
    """

    experiment: str
    attention: str
    method: str
    changes: tuple[str, ...]  # "KEY=VALUE"
    seed: int | str
    folder: Path
    settings: dict = field(default_factory=dict)  # run.json
    evaluation: dict = field(default_factory=dict)  # evaluation.json
    problem: str | None = None
    kind: Kind | None = None
    updates: int | None = None  # planned
    reached: int | None = None  # done
    length: float | None = None  # of the training, in ``unit``
    unit: str | None = None  # "updates" or "epochs"
    curve: dict[int, float] = field(default_factory=dict)  # {updates: value} of the validations
    values: dict[str, dict] = field(default_factory=dict)  # {evaluation: {metric: value}}

    @property
    def label(self) -> str:
        """The method with its changes, as shown in legends."""
        return ", ".join((self.method, *self.changes))

    def describe_state(self) -> str:
        """Describes how far the run got, or why it cannot be read."""
        if self.problem is not None:
            return f"damaged: {self.problem}"
        return describe_state(self.state, self.reached, self.updates)

    @cached_property
    def state(self) -> str:
        """One of "finished", "running", "stopped", "failed" and "damaged"."""
        if self.problem is not None:
            return "damaged"
        if is_locked(self.folder):
            return "running"
        if "finished" in self.evaluation:
            return "finished"
        return "failed" if ERROR.match(self.last_log_line()[1]) else "stopped"

    def measurements(self) -> Iterator[tuple[str, str, float, str | None]]:
        """Yields (evaluation, metric, value, signature or None) of every measured metric."""
        for evaluation, measured in self.values.items():
            for metric in reported_metrics(self.kind, measured):
                yield evaluation, metric, float(measured[metric]), measured.get(f"{metric}_signature")

    def progress(self) -> str:
        """Describes in one line how the training of a running run is progressing."""
        try:
            return progress.describe_folder(self.folder, self.updates)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # truncated, or unexpected values
            return self.describe_state()

    def last_updated(self) -> datetime | None:
        """Returns when the run's files were last written to."""
        times = []
        for name in (*RECORDS, "train.log"):
            with suppress(OSError):
                times.append((self.folder / name).stat().st_mtime)
        return datetime.fromtimestamp(max(times), UTC) if times else None

    def last_log_line(self) -> tuple[str, str]:
        """Returns the name of the newest log and its last non-empty line, or two empty strings."""
        with suppress(OSError, ValueError):
            logs = [path for path in self.folder.glob("*.log") if path.is_file()]
            newest = max(logs, key=lambda path: path.stat().st_mtime)
            with newest.open("rb") as log:
                log.seek(max(0, newest.stat().st_size - LOG_TAIL))
                lines = log.read().decode(errors="replace").split("\n")
            return newest.name, next((line for line in reversed(lines) if line.strip()), "")
        return "", ""


def describe_state(state: str, reached: float, updates: float) -> str:
    """Describes the state of a run that is not damaged, such as "stopped at 40 of 100"."""
    if state == "running":
        return f"running {reached:.0f}/{updates:.0f}"
    if state == "finished":
        return state
    return f"stopped at {reached:.0f} of {updates:.0f}" if reached < updates else "not measured"


def read_run(folder: Path, results: Path) -> RunRecord:
    """Reads one run folder below the results folder; never raises for damaged files."""
    experiment = experiment_of(folder, results)
    name, *changes, seed = folder.relative_to(results / experiment).parts
    attention, _, method = name.partition("_")
    number = seed.removeprefix("seed-")
    record = RunRecord(
        *(experiment.as_posix(), attention, method, tuple(map(unquote, changes))),
        seed=int(number) if number.isdecimal() else number,
        folder=folder,
    )
    try:
        record.settings = object_in(folder / "run.json")
        record.evaluation = object_in(folder / "evaluation.json")
        _read_measurements(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        record.problem = f"no {error}" if isinstance(error, KeyError) else str(error)
    return record


def _read_measurements(record):
    """Fills in the fields after ``problem``; raises one of several errors if the files are damaged."""
    settings, evaluation, folder = record.settings, record.evaluation, record.folder
    if not settings:
        raise ValueError("run.json is missing or empty")
    if settings.get("kind") not in KINDS:
        raise ValueError(f"run.json has the unknown kind {settings.get('kind')!r}")
    kind = KINDS[settings["kind"]]
    epochs, values = settings["config"].get("epochs"), evaluation.get("evaluations", {})
    length, unit = (epochs, "epochs") if epochs else (settings["config"].get("updates"), "updates")
    if not all(isinstance(measured, dict) for measured in values.values()):
        raise ValueError("an evaluation has no values")
    numbers = {f"{unit} in run.json": length or 0}
    for name, measured in values.items():
        shown = reported_metrics(kind, measured)
        numbers |= {f"{metric} of the evaluation {name}": measured[metric] for metric in shown}
    for name, value in numbers.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{name} is not a number: {value!r}")
    updates = int(settings["updates"])
    log = read_lines(folder / "log.jsonl")
    reached = [int(value) for entry in log for key, value in entry.items() if key.endswith("num_updates")]
    # The curve of a run with a search (`choose:`) is that of its best trial.
    best = (folder / evaluation["checkpoint"]).parents[1] if "checkpoint" in evaluation else folder
    validations = [entry for entry in read_lines(best / "log.jsonl") if entry["kind"] == "valid"]
    if kind.curve is not None:
        key, factor = kind.curve.key, kind.curve.factor
        points = {int(entry["valid_num_updates"]): entry[key] for entry in validations if key in entry}
        record.curve = {updates: factor * float(value) for updates, value in points.items()}
    record.kind, record.updates, record.reached = kind, updates, max(reached, default=0)
    record.length, record.unit, record.values = length, unit, values


def flatten(content: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields (key, value) of nested dictionaries, such as ("config.train.lr", "0.001")."""
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from flatten(value, f"{key}.{name}".lstrip("."))
    elif isinstance(content, float):
        yield key, f"{content:.10g}"
    else:
        yield key, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def reported_metrics(kind: Kind, measured: dict) -> list[str]:
    """Returns the metrics of an evaluation that are reported: the kind's own, and speeds."""
    speeds = [name for name in measured if name.endswith("_per_second")]
    return [*(metric for metric in kind.metrics if metric in measured), *speeds]
