"""A run as it is shown: its settings, state, curve and measurements."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.kinds import KINDS, Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.execution.run_directory import is_locked
from fairseq_lrpe.experiments.execution.run_schema import SPEEDS
from fairseq_lrpe.experiments.execution.state import State
from fairseq_lrpe.experiments.reporting.settings import compared, configured_settings, different_settings
from fairseq_lrpe.methods import METHODS

MAX_LOG_END = 1 << 16  # number of bytes in which the last line of a log is searched

METHOD_ORDER = {method: index for index, method in enumerate(METHODS)}
ERROR = re.compile(r"[\w.]*(Error|Exception)\b|fairseq_lrpe: ")  # last line of a failed command's log


def row_key(run: Run) -> tuple:
    """Returns the values of a run in the columns ``RUN``."""
    changes = ", ".join("=".join(change) for change in run.changes)
    return run.experiment, run.attention, run.method, changes, run.seed


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
    def state(self) -> State:
        """FINISHED, RUNNING, STOPPED, FAILED, DAMAGED or OUTDATED."""
        if self.problem is not None:
            return State.OUTDATED if self.is_outdated else State.DAMAGED
        if is_locked(self.folder):
            return State.RUNNING
        if "finished" in self.evaluation and endings.has_ended(self.evaluation, self.reached, self.updates):
            return State.FINISHED
        return State.FAILED if ERROR.match(self.last_log_line()[1]) else State.STOPPED

    def describe_state(self) -> str:
        """Returns how far the run got, such as "stopped at 40 of 100", or why it cannot be read."""
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
        """Sets the fields that follow from the files."""
        self.kind = KINDS[self.settings["kind"]]
        self.updates = self.settings["updates"]
        config = self.settings["config"]
        self.unit = next((unit for unit in ("epochs", "rounds") if config.get(unit)), "updates")
        self.length = float(config.get(self.unit) or math.nan)
        if self.updates and (ended := self.evaluation.get("ended")):
            self.length *= ended["updates"] / self.updates
        self.measured = self.evaluation.get("evaluations", {})

    def measurements(self) -> Iterator[tuple[str, str, float, str | None]]:
        """Yields (evaluation, metric, value, signature or None)."""
        for evaluation, measured in self.measured.items():
            speeds = [name for name in SPEEDS if name in measured]
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
        with newest.open("rb") as log:
            log.seek(max(0, newest.stat().st_size - MAX_LOG_END))
            lines = log.read().decode("utf-8", "replace").split("\n")
        return newest.name, next((line for line in reversed(lines) if line.strip()), "")


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
