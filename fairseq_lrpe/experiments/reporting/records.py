"""Reads runs: from their folders, or from a folder of recorded results such as docs/results.

A folder of recorded results contains settings/EXPERIMENT.jsonl, with one JSON object per run,
measurements/EXPERIMENT.csv, with one line per number, curves/EXPERIMENT.csv, and attention_weights.csv.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

import pandas as pd

from fairseq_lrpe.experiments.definition.experiment import Experiment, is_non_identifying
from fairseq_lrpe.experiments.definition.kinds import KINDS, Kind
from fairseq_lrpe.experiments.definition.run import RECORDS, Run, experiment_of, run_folders
from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.execution.run_directory import is_locked, object_in, read_lines
from fairseq_lrpe.experiments.execution.runner import Job, evaluation_settings
from fairseq_lrpe.methods import METHODS, canonical
from fairseq_lrpe.utils.errors import UserError

RUN = ["experiment", "attention", "method", "changes", "seed"]
"""Columns of a DataFrame that identify a run."""
MEASUREMENTS = [*RUN, "evaluation", "metric", "value", "signature"]
POINTS = [*RUN, "updates", "value"]
WEIGHTS = [*RUN, "distance", "value"]
"""Columns of the files with measurements, of those with curves, and of attention_weights.csv."""
TYPES = {"distance": int, "seed": int, "updates": int, "value": float}

METHOD_ORDER = {method: index for index, method in enumerate(METHODS)}
ERROR = re.compile(r"[\w.]*(Error|Exception)\b|fairseq_lrpe: ")  # last line of a failed command's log


@dataclass
class RunRecord:
    """A run that was started.

    ``problem`` says why a run cannot be read, or why recorded results are outdated; there are then no
    measurements.
    """

    run: Run  # with the canonical name of its method
    folder: Path
    settings: dict = field(default_factory=dict)  # content of run.json
    evaluation: dict = field(default_factory=dict)  # content of evaluation.json
    problem: str | None = None
    is_outdated: bool = False  # whether the problem is that the training has other settings than configs
    kind: Kind | None = None
    updates: int | None = None  # planned number of updates
    reached: int | None = None  # completed number of updates
    length: float | None = None  # length of the training in ``unit``; the planned one, unless it ended early
    unit: str | None = None  # "updates", "epochs" or "rounds"
    seconds: float = math.nan  # sum of fairseq's train_wall over the epochs
    curve: dict[int, float] = field(default_factory=dict)  # {updates: value of the kind's curve}
    measured: dict[str, dict] = field(default_factory=dict)  # {evaluation: {metric: value}}
    omitted: list[str] = field(default_factory=list)  # settings because of which evaluations are omitted

    @property
    def changes(self) -> str:
        """The settings that differ from the YAML, such as "train.lr=0.1, updates=40"."""
        return row_key(self.run)[3]

    @property
    def order(self) -> tuple:
        """The sort key of the run's row in tables and legends."""
        _, attention, method, changes, _ = row_key(self.run)
        return attention, METHOD_ORDER.get(method, len(METHOD_ORDER)), method, changes

    @cached_property
    def state(self) -> str:
        """One of "finished", "running", "stopped", "failed", "damaged" and "other settings"."""
        if self.problem is not None:
            return "other settings" if self.is_outdated else "damaged"
        if is_locked(self.folder):
            return "running"
        if "finished" in self.evaluation and endings.has_ended(self.evaluation, self.reached, self.updates):
            return "finished"
        return "failed" if ERROR.match(self.last_log_line()[1]) else "stopped"

    def describe_state(self) -> str:
        """Returns how far the run got, such as "stopped at 40 of 100", or why it cannot be read."""
        if self.problem is not None:
            return f"{self.state}: {self.problem}"
        if self.state == "finished":
            return endings.describe(self.evaluation, self.updates)
        if self.state == "running":
            return f"running {self.reached}/{self.updates}"
        if self.reached < self.updates:
            return f"stopped at {self.reached} of {self.updates}"
        return "not measured"

    @property
    def is_diverged(self) -> bool:
        return endings.is_diverged(self.evaluation)

    def complete(self) -> None:
        """Sets the fields that follow from the files; raises errors of various types if a file is damaged."""
        if self.settings.get("kind") not in KINDS:
            kind = self.settings.get("kind")
            raise UserError(f"unknown kind {kind!r}: expected one of {', '.join(KINDS)}")
        self.kind, self.updates = KINDS[self.settings["kind"]], int(self.settings["updates"])
        config = self.settings["config"]
        self.unit = next((unit for unit in ("epochs", "rounds") if config.get(unit)), "updates")
        self.length = float(config.get(self.unit) or math.nan)
        if ended := self.evaluation.get("ended"):
            self.length *= int(ended["updates"]) / self.updates
        self.measured = self.evaluation.get("evaluations", {})
        list(self.measurements())  # raises an error if a value is not a number

    def measurements(self) -> Iterator[tuple[str, str, float, str | None]]:
        """Yields (evaluation, metric, value, signature or None)."""
        for evaluation, measured in self.measured.items():
            speeds = [name for name in measured if name.endswith("_per_second")]
            for metric in (*(name for name in self.kind.metrics if name in measured), *speeds):
                yield evaluation, metric, float(measured[metric]), measured.get(f"{metric}_signature")

    def value(self, evaluation: str, metric: str) -> float | None:
        """Returns a measurement, which is NaN if the run diverged, or None if there is none."""
        measured = self.measured.get(evaluation, {})
        worst = math.nan if self.is_diverged and measured else None
        return float(value) if (value := measured.get(metric, worst)) is not None else None

    def compared_settings(self) -> dict[str, dict[str, object]]:
        """Returns the settings that can change the result, in the format of ``compared``."""
        evaluations = {name: measured.get("settings") for name, measured in self.measured.items()}
        return compared(self.settings["config"], self.run.method, evaluations, self.settings.get("flags"))

    def last_log_line(self) -> tuple[str, str]:
        """Returns the name of the newest log and its last non-empty line, or two empty strings."""
        logs = [path for path in self.folder.glob("*.log") if path.is_file()]
        if not logs:
            return "", ""
        newest = max(logs, key=lambda path: path.stat().st_mtime)
        lines = newest.read_text("utf-8", "replace").split("\n")
        return newest.name, next((line for line in reversed(lines) if line.strip()), "")


def read_runs(results: Path, folders: Collection[Path] | None = None) -> list[RunRecord]:
    """Reads the runs of a results folder or a folder of recorded results.

    ``folders`` are the run folders to read, of which some may not exist; the default is all.
    """
    if not results.is_dir():
        raise UserError(f"the results folder {results} does not exist")
    if is_recorded(results):
        return [run for run in read_recorded(results) if folders is None or run.folder in folders]
    if folders is None:
        folders = run_folders(results)
    return [read_run(path, results) for path in folders if any((path / name).exists() for name in RECORDS)]


def read_run(folder: Path, results: Path) -> RunRecord:
    """Reads a run folder; errors in its files are recorded as ``problem``."""
    experiment = experiment_of(folder, results)
    name, *changes, last = folder.relative_to(results / experiment).parts
    attention, _, method = name.partition("_")
    changes = tuple(tuple(unquote(text).split("=", 1)) for text in changes)
    seed = int(last.removeprefix("seed-"))
    run = Run(experiment.as_posix(), attention, canonical(method), seed, changes)
    record = RunRecord(run, folder)
    try:
        record.settings = object_in(folder / "run.json")
        if found := run.other_run(record.settings):
            raise UserError(f"it is a copy of the run with {found} (run.json): remove it")
        record.evaluation = object_in(folder / "evaluation.json")
        record.complete()
        _read_log(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        record.problem = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        record.measured = {}
    return record


def _read_log(record):
    """Sets the number of completed updates, the training time and the curve of a run."""
    log = read_lines(record.folder / "log.jsonl")
    reached = [int(value) for entry in log for key, value in entry.items() if key.endswith("num_updates")]
    record.reached = max(reached, default=0)
    # An epoch that ended just before fairseq was killed has no time, and the sum is then NaN.
    seconds = [entry.get("train_train_wall", math.nan) for entry in log if entry["kind"] == "train"]
    record.seconds = float(sum(seconds)) if seconds else math.nan
    if curve := record.kind.curve:
        validations = [entry for entry in log if entry["kind"] == "valid" and curve.key in entry]
        points = {int(entry["valid_num_updates"]): float(entry[curve.key]) for entry in validations}
        record.curve = {updates: curve.factor * value for updates, value in points.items()}


def machine(settings: dict) -> str:
    """Returns the GPUs in a run.json, or the CPU and its threads, and the precision as text.

    The settings of recorded results already have this text as "machine".
    """
    if "machine" in settings:
        return settings["machine"]
    nodes, cpu = settings.get("nodes", 1), settings.get("processor")
    names = settings.get("gpu_names", [])[: settings.get("gpus") or None]
    gpus = Counter(re.sub(r" \(cuda:\d+\)$", "", name) for name in names)
    devices = ", ".join(f"{n * nodes} × {name}" for name, n in gpus.items()) or "-"
    if settings.get("cpu") and cpu:
        processes = (settings["gpus"] or 1) * nodes
        threads = f"{cpu['threads']} thread{'s' * (cpu['threads'] != 1)}"
        each = f"{processes} processes with {threads} each" if processes > 1 else threads
        devices = f"CPU ({cpu['name']}, {cpu['instructions']}, {each})"
    return f"{devices} {settings.get('precision', '')}".strip()


def flatten(content: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yields (key, value) of nested dictionaries, such as ("config.train.lr", 0.001)."""
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from flatten(value, f"{key}.{name}".lstrip("."))
    else:
        yield key, content


def flat_texts(content: dict) -> dict[str, str]:
    """Returns {key: value} of nested dictionaries as text, numbers with up to 10 digits."""
    found = {key: f"{x:.10g}" if isinstance(x, float) else x for key, x in flatten(content)}
    return {k: x if isinstance(x, str) else json.dumps(x, ensure_ascii=False) for k, x in found.items()}


def compared(
    config: dict, method: str, evaluations: dict[str, dict], flags: list | None = None
) -> dict[str, dict]:
    """Returns {"" or the name of an evaluation: {key: value}} of the settings that can change a result.

    Those of "" are the training's. Flags of other methods are omitted, and so are empty values, so that a new
    method or optional key of the YAML files does not change the settings.
    """
    config = {key: value for key, value in flatten(config) if _is_compared(key, method)}
    parts = {"": {**config, "flags of fairseq-train": flags}, **evaluations}
    found = {
        part: {k: x for k, x in flatten(of) if x not in (None, "", [], {})} for part, of in parts.items()
    }
    return {part: settings for part, settings in found.items() if settings}


def _is_compared(key, method):
    section, *names = key.split(".")
    if section == "by_method":
        return names[:1] == [method]
    return not is_non_identifying(key) or section in ("starts_from", "choose")


def configured_settings(
    runs: Iterable[Run], load: Callable[[str], Experiment] = Experiment.load
) -> dict[Run, dict[str, dict]]:
    """Returns {run: its settings as configs defines them now}, without runs that it does not define.

    ``load`` returns the experiment of a name, which may have overrides.
    """
    load, settings, found = cache(load), {}, {}
    for run in runs:
        key = run.experiment, run.changes
        with suppress(ValueError):  # the experiment or a changed key does not exist any more
            job = Job(load(run.experiment), run, Path())
            if key not in settings:
                evaluations = {name: evaluation_settings(job, name) for name in job.kind.evaluations(job.cfg)}
                settings[key] = job.config, evaluations
            config, evaluations = settings[key]
            found[run] = compared(config | {"starts_from": job.start_name}, run.method, evaluations)
    return found


def different_settings(before: dict[str, dict], now: dict[str, dict] | None) -> dict[str, list[str]]:
    """Returns {part: differences "KEY was VALUE, now VALUE"} of two results of ``compared``.

    Evaluations that only ``now`` has are ignored. ``now`` is None if configs does not define the run.
    """
    if now is None:
        return {"": ["it is not defined"]}
    found = {}
    for part, old in before.items():
        new, prefix = now.get(part, {}), part and f"evaluations.{part}."
        if differ := [key for key in {**old, **new} if old.get(key) != new.get(key)]:
            found[part] = [f"{prefix}{key} was {old.get(key)}, now {new.get(key)}" for key in differ]
    return found


def with_current_settings(
    records: Iterable[RunRecord], load: Callable[[str], Experiment] = Experiment.load
) -> list[RunRecord]:
    """Returns the records without numbers that were measured with settings other than those in configs now.

    If the settings of the training differ, the record has a ``problem``. If those of evaluations differ,
    these are omitted, and ``omitted`` says why. ``load`` returns the experiment of a name, which may have
    overrides.
    """
    records, found = list(records), []
    configured = configured_settings((x.run for x in records if x.problem is None), load)
    for record in records:
        if record.problem is None:
            now = configured.get(record.run)
            differences = different_settings(record.compared_settings(), now)
            if "" in differences:
                problem = "; ".join(differences[""])
                record = replace(record, problem=problem, is_outdated=True, measured={}, curve={})
            elif differences:
                differences = {part: texts for part, texts in differences.items() if part in now}
                kept = {name: of for name, of in record.measured.items() if name not in differences}
                record = replace(record, measured=kept, omitted=list(chain(*differences.values())))
        found.append(record)
    return found


def is_recorded(results: Path) -> bool:
    return (results / "measurements").is_dir()


def row_key(run: Run) -> tuple:
    """Returns the values of a run in the columns ``RUN``."""
    changes = ", ".join("=".join(change) for change in run.changes)
    return run.experiment, run.attention, run.method, changes, run.seed


def read_settings(folder: Path) -> dict[Run, dict]:
    """Returns {run: its line in the files settings/EXPERIMENT.jsonl} of recorded results."""
    lines = {}
    for path in sorted((folder / "settings").glob("[!.]*.jsonl")):
        try:
            found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            lines |= {Run.of(line): line for line in found}
        except (ValueError, KeyError) as error:
            raise _damaged(path, error) from None
    return lines


def read_recorded(folder: Path) -> list[RunRecord]:
    """Reads recorded results as run records, without numbers whose settings in configs have changed since."""
    lines, found = read_settings(folder), []
    measured = _read_by_run((folder / "measurements").glob("[!.]*.csv"), MEASUREMENTS)
    curves = _read_by_run((folder / "curves").glob("[!.]*.csv"), POINTS)
    for run, settings in lines.items():
        try:
            record = _as_record(folder, run, settings, measured.get(row_key(run), ()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            name = run.experiment.replace("/", "-")
            raise _damaged(folder / "settings" / f"{name}.jsonl", error) from None
        record.curve = dict(curves.get(row_key(run), ()))
        found.append(record)
    return with_current_settings(found)


def _as_record(folder, run, settings, measured):
    values = {name: {"settings": about} for name, about in settings["evaluations"].items()}
    for evaluation, metric, value, signature in measured:
        one = values.setdefault(evaluation, {})
        one[metric] = value
        if signature:
            one[f"{metric}_signature"] = signature
    evaluation = {"evaluations": values, "finished": settings["finished"]}
    if "ended" in settings:
        evaluation["ended"] = settings["ended"]
    record = RunRecord(run, folder / str(run), settings, evaluation)
    record.complete()
    record.reached = settings["ended"]["updates"] if "ended" in settings else record.updates
    return record


def _read_by_run(paths, columns):
    """Returns {values of the columns ``RUN``: rows of the other columns} from CSV files."""
    found = {}
    for path in sorted(paths):
        for row in read_csv(path, columns).itertuples(index=False, name=None):
            found.setdefault(row[: len(RUN)], []).append(row[len(RUN) :])
    return found


def read_weights(folder: Path, runs: Iterable[Run]) -> dict[Run, list[tuple[int, float]]]:
    """Reads {run: [(distance, weight)]} of those runs that attention_weights.csv contains."""
    weights = _read_by_run(folder.glob("attention_weights.csv"), WEIGHTS)
    return {run: weights[row_key(run)] for run in runs if row_key(run) in weights}


def shown_distances(length: int) -> list[int]:
    """Returns the distances below ``length`` with recorded weights: all below 32, then every third one."""
    return [n for n in range(length) if n < 32 or (n - 32) % 3 == 0]


def read_csv(path: Path, columns: list[str]) -> pd.DataFrame:
    """Reads a CSV file; raises UserError if it is damaged, or two lines differ at most in the value."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, usecols=columns)
        frame = frame.astype({name: kind for name, kind in TYPES.items() if name in columns})
        if frame.duplicated(columns[: columns.index("value")]).any():
            raise ValueError("two lines differ at most in the value")
    except ValueError as error:
        raise _damaged(path, error) from None
    return frame[columns]


def _damaged(path, error):
    text = " ".join(str(error).split())
    return UserError(f"{path} is damaged ({text}): restore it, for example with git, and record again")
