"""The record of a run from which reports are made: its settings, state, curve and measurements."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.kinds import KINDS, Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.execution.job import State
from fairseq_lrpe.experiments.execution.run_directory import is_locked
from fairseq_lrpe.experiments.execution.run_schema import SPEEDS
from fairseq_lrpe.experiments.reporting.settings import compared, configured_settings, different_settings
from fairseq_lrpe.methods import METHODS

MAX_LOG_END = 1 << 16  # number of bytes in which the last line of a log is searched

METHOD_ORDER = {method: index for index, method in enumerate(METHODS)}
ERROR = re.compile(r"[\w.]*(Error|Exception)\b|fairseq_lrpe: ")  # last line of a failed command's log


def row_key(run: Run) -> tuple:
    """Returns the values of a run in the columns ``recorded_results.RUN``."""
    changes = ", ".join("=".join(change) for change in run.changes)
    return run.experiment, run.attention, run.method, changes, run.seed


@dataclass
class RunRecord:
    """The record of a run that was started.

    A record with a ``problem``, the reason why a run cannot be read or is outdated, has no measurements.
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
        """The settings that differ from the YAML file, such as "train.lr=0.1, updates=40", or ""."""
        return row_key(self.run)[3]

    @property
    def order(self) -> tuple:
        """The sort key of the run's row in tables and legends; all seeds have the same."""
        _, attention, method, changes, _ = row_key(self.run)
        return attention, METHOD_ORDER.get(method, len(METHOD_ORDER)), method, changes

    @cached_property
    def state(self) -> State:
        """The state of the run: FINISHED, RUNNING, STOPPED, FAILED, DAMAGED or OUTDATED."""
        if self.problem is not None:
            return State.OUTDATED if self.is_outdated else State.DAMAGED
        if is_locked(self.folder):
            return State.RUNNING
        if "finished" in self.evaluation and endings.has_ended(self.evaluation, self.reached, self.updates):
            return State.FINISHED
        return State.FAILED if ERROR.match(self.last_log_line()[1]) else State.STOPPED

    def describe_state(self) -> str:
        """Returns the progress of the run, such as "stopped at 40 of 100", or the reason of its problem."""
        if self.problem is not None:
            return f"{self.state}: {self.problem}"
        if self.state == State.FINISHED:
            return endings.describe(self.evaluation, self.updates)
        if self.state == State.RUNNING:
            return f"running {self.reached}/{self.updates}"
        if self.reached < self.updates:
            return f"stopped at {self.reached} of {self.updates}"
        return "not measured"

    @property
    def is_diverged(self) -> bool:
        return endings.is_diverged(self.evaluation)

    def complete(self) -> None:
        """Sets the fields that follow from the contents of run.json and evaluation.json."""
        self.kind = KINDS[self.settings["kind"]]
        self.updates = self.settings["updates"]
        config = self.settings["config"]
        self.unit = unit_of_length(config)
        self.length = float(config.get(self.unit) or math.nan)
        if self.updates and (ended := self.evaluation.get("ended")):
            self.length *= ended["updates"] / self.updates
        self.measured = self.evaluation.get("evaluations", {})

    def measurements(self) -> Iterator[tuple[str, str, float, str | None]]:
        """Yields (evaluation, metric, value, signature or None) of each measurement, including speeds."""
        for evaluation, measured in self.measured.items():
            for metric in (*self.kind.metrics, *SPEEDS):
                if metric in measured:
                    yield evaluation, metric, float(measured[metric]), measured.get(f"{metric}_signature")

    def value(self, evaluation: str, metric: str) -> float | None:
        """Returns a measurement; if it is missing, NaN for a run that diverged, and None otherwise.

        The key of the kind's curve is a metric of the evaluation "training": the last value of the curve.
        """
        if evaluation == "training" and self.kind.curve and metric == self.kind.curve.key:
            return self._last_of_curve()
        measured = self.measured.get(evaluation, {})
        value = measured.get(metric)
        # A diverged run has the worst value of every metric, also of those that could not be measured.
        if metric not in measured and measured and self.is_diverged:
            value = math.nan
        return None if value is None else float(value)

    def _last_of_curve(self):
        if self.is_diverged:
            return math.nan
        return self.curve[max(self.curve)] if self.curve else None

    def compared_settings(self) -> dict[str, dict[str, object]]:
        """Returns the settings that can change the result, as :func:`compared` returns them."""
        evaluations = {}
        for name, measured in self.measured.items():
            evaluations[name] = measured.get("settings")
        return compared(self.settings["config"], self.run.method, evaluations, self.settings.get("flags"))

    def last_log_line(self) -> tuple[str, str]:
        """Returns the name of the newest log and its last non-empty line, or two empty strings."""
        logs = [path for path in self.folder.glob("*.log") if path.is_file()]
        if not logs:
            return "", ""
        newest = max(logs, key=lambda path: path.stat().st_mtime)
        with newest.open("rb") as log:
            log.seek(max(0, newest.stat().st_size - MAX_LOG_END))
            lines = log.read().decode("utf-8", "replace").split("\n")
        for line in reversed(lines):
            if line.strip():
                return newest.name, line
        return newest.name, ""


def readable(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Returns the records without a problem."""
    return [record for record in records if record.problem is None]


def by_run(records: Iterable[RunRecord]) -> dict[Run, RunRecord]:
    """Returns {run: record}."""
    return {record.run: record for record in records}


def unit_of_length(config: Mapping) -> str:
    """Returns the unit in which an experiment gives the length of the training: epochs, rounds or updates."""
    for unit in ("epochs", "rounds"):
        if config.get(unit):
            return unit
    return "updates"


def with_current_settings(
    records: Iterable[RunRecord], load: Callable[[str], Experiment] = Experiment.load
) -> list[RunRecord]:
    """Returns the records without numbers that were measured with settings other than those in configs now.

    If the settings of the training differ, the record gets a ``problem``. Evaluations whose settings differ
    are left out, and ``omitted`` lists the differences.

    Args:
        records: the records of runs.
        load: function that returns the experiment with a name, which may have overrides.
    """
    records = list(records)
    configured = configured_settings(by_run(readable(records)), load)
    current = []
    for record in records:
        if record.problem is None:
            record = _without_outdated(record, configured.get(record.run))
        current.append(record)
    return current


def _without_outdated(record, now):
    """Returns a record without the numbers that were measured with settings other than ``now``."""
    differences = different_settings(record.compared_settings(), now)
    if "" in differences:
        problem = "; ".join(differences[""])
        return replace(record, problem=problem, is_outdated=True, measured={}, curve={})
    # The numbers of an evaluation that configs does not define any more are kept.
    outdated = {name: texts for name, texts in differences.items() if name in now}
    if not outdated:
        return record
    measured = {name: values for name, values in record.measured.items() if name not in outdated}
    return replace(record, measured=measured, omitted=list(chain(*outdated.values())))
