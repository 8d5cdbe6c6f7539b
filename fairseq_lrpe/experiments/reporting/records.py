"""Reads run folders: the settings, progress and measurements of runs."""

import json
import math
import re
from collections import Counter
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
from fairseq_lrpe.experiments.spec.run import RECORDS, Run, experiment_of
from fairseq_lrpe.methods import canonical

RUN = ["experiment", "attention", "method", "changes", "seed"]
"""Columns of a DataFrame that identify a run."""

ERROR = re.compile(r"[\w.]*(Error|Exception)\b|fairseq_lrpe: ")  # last line of a failed command's log
LOG_TAIL = 4096  # bytes of a log that are searched for its last line


@dataclass
class RunRecord:
    """The contents of a run folder.

    The first five fields are parsed from the folder's path, so that damaged runs have them, too. If the files
    cannot be read, ``problem`` says why, and the fields after ``problem`` are incomplete.
    """

    experiment: str
    attention: str
    method: str
    changes: tuple[str, ...]  # "KEY=VALUE"
    seed: int | str
    folder: Path
    settings: dict = field(default_factory=dict)  # content of run.json
    evaluation: dict = field(default_factory=dict)  # content of evaluation.json
    problem: str | None = None
    kind: Kind | None = None
    updates: int | None = None  # planned number of updates
    reached: int | None = None  # completed number of updates
    length: float | None = None  # planned length of the training in ``unit``
    unit: str | None = None  # "updates", "epochs" or "rounds"
    seconds: float = math.nan  # sum of fairseq's train_wall over the epochs
    curve: dict[int, float] = field(default_factory=dict)  # {updates: value of the kind's curve}
    values: dict[str, dict] = field(default_factory=dict)  # {evaluation: {metric: value}}

    @property
    def run(self) -> Run:
        """The run, with the canonical name of its method."""
        changes = tuple(tuple(text.split("=", 1)) for text in self.changes)
        return Run(self.experiment, self.attention, canonical(self.method), self.seed, changes)

    @property
    def label(self) -> str:
        """The method and the changes, as shown in the legends of plots."""
        return ", ".join((self.method, *self.changes))

    def describe_state(self) -> str:
        """Returns in words how far the run got, or why it cannot be read."""
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
        """Yields (evaluation, metric, value, signature or None) of every reported metric."""
        for evaluation, measured in self.values.items():
            for metric in reported_metrics(self.kind, measured):
                yield evaluation, metric, float(measured[metric]), measured.get(f"{metric}_signature")

    def progress(self) -> str:
        """Returns one line about the progress of the run while it is running."""
        try:
            return progress.describe_folder(self.folder, self.updates)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # truncated or damaged
            return self.describe_state()

    def last_updated(self) -> datetime | None:
        """Returns the time of the last change of the run's files, or None if there are none."""
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
    """Returns the state of a run that is not damaged in words, such as "stopped at 40 of 100" (updates)."""
    if state == "running":
        return f"running {reached:.0f}/{updates:.0f}"
    if state == "finished":
        return state
    return f"stopped at {reached:.0f} of {updates:.0f}" if reached < updates else "not measured"


def read_run(folder: Path, results: Path) -> RunRecord:
    """Reads a run folder below the results folder; errors in its files are recorded as ``problem``."""
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
        record.problem = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
    return record


def _read_measurements(record):
    """Sets the fields after ``problem``; raises various errors if the files are damaged."""
    settings, evaluation, folder = record.settings, record.evaluation, record.folder
    if not settings:
        raise ValueError("run.json is missing or empty")
    if settings.get("kind") not in KINDS:
        raise ValueError(f"run.json has the unknown kind {settings.get('kind')!r}")
    kind = KINDS[settings["kind"]]
    values = evaluation.get("evaluations", {})
    unit = next((unit for unit in ("epochs", "rounds") if settings["config"].get(unit)), "updates")
    length = settings["config"].get(unit)
    if not all(isinstance(measured, dict) for measured in values.values()):
        raise ValueError("an evaluation in evaluation.json is not an object")
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
    # The curve of a run that chooses among trials is that of its best trial.
    best = (folder / evaluation["checkpoint"]).parents[1] if "checkpoint" in evaluation else folder
    trained = read_lines(best / "log.jsonl")
    validations = [entry for entry in trained if entry["kind"] == "valid"]
    # An epoch that ended just before fairseq was killed has no time, and the sum is then NaN.
    seconds = [entry.get("train_train_wall", math.nan) for entry in trained if entry["kind"] == "train"]
    record.seconds = float(sum(seconds)) if seconds else math.nan
    if kind.curve is not None:
        key, factor = kind.curve.key, kind.curve.factor
        points = {int(entry["valid_num_updates"]): entry[key] for entry in validations if key in entry}
        record.curve = {updates: factor * float(value) for updates, value in points.items()}
    record.kind, record.updates, record.reached = kind, updates, max(reached, default=0)
    record.length, record.unit, record.values = length, unit, values


def machine(settings: dict) -> str:
    """Returns the GPUs in a run.json, or the CPU and its threads, and the precision as text.

    The settings of recorded results already have this text as "machine".
    """
    if isinstance(settings.get("machine"), str):
        return settings["machine"]
    names, nodes = settings.get("gpu_names"), settings.get("nodes") or 1
    names = names[: settings.get("gpus") or None] if isinstance(names, list) else []
    gpus = Counter(re.sub(r" \(cuda:\d+\)$", "", str(name)) for name in names)
    devices = ", ".join(f"{n * nodes} × {name}" for name, n in gpus.items())
    return " ".join(str(x) for x in (devices or _cpu(settings), settings.get("precision")) if x)


def _cpu(settings):
    """Returns the CPU in a run.json as text.

    Runs without "processor" or its "instructions" were trained by an earlier version.
    """
    if not settings.get("cpu"):
        return "-"
    found, processes = settings.get("processor"), (settings.get("gpus") or 1) * (settings.get("nodes") or 1)
    if not isinstance(found, dict):
        return "CPU"
    threads = f"{found.get('threads')} thread{'s' * (found.get('threads') != 1)}"
    each = f"{processes} processes with {threads} each" if processes > 1 else threads
    return f"CPU ({', '.join(filter(None, (found.get('name'), found.get('instructions'), each)))})"


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
    """Returns the metrics of an evaluation that are reported: those of the kind, and speeds."""
    speeds = [name for name in measured if name.endswith("_per_second")]
    return [*(metric for metric in kind.metrics if metric in measured), *speeds]
