"""Everything that is below a results folder: each run as its folder has it, its experiment, its tables."""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import track

from fairseq_lrpe.experiments import entries, experiment, listing, record, watch
from fairseq_lrpe.experiments.entries import Entry
from fairseq_lrpe.experiments.listing import Row
from fairseq_lrpe.experiments.record import Damaged, Record
from fairseq_lrpe.experiments.run import RECORDS, Run, experiment_of, run_folders
from fairseq_lrpe.experiments.run_folder import OldLayout, object_in, read_lines
from fairseq_lrpe.experiments.table import SCALES, Table, tables

STATES = ("finished", "running", "stopped", "failed", "damaged", "not started")
ERROR = re.compile(r"[\w.]*(Error|Exception)\b|fairseq_lrpe: ")  # a log's last line where a command failed
TAIL = 4096  # bytes of a log in which its last line is looked for


@dataclass
class Found:
    """A run's folder: ``record``, or the ``error`` that says why there is none."""

    folder: Path
    name: str  # as seen from the results
    key: str  # its name on the page
    record: Record | None = None
    error: Damaged | OldLayout | None = None
    settings: dict = field(default_factory=dict)  # run.json
    evaluation: dict = field(default_factory=dict)  # evaluation.json

    @classmethod
    def of(cls, folder: Path, results: Path, key: str) -> "Found":
        """Returns what can be read of the folder."""
        found = cls(folder, folder.relative_to(results).as_posix(), key)
        try:
            found.record = record.load(folder)
        except (Damaged, OldLayout) as error:
            found.error = error
        with suppress(OSError, ValueError):
            found.settings = object_in(folder / "run.json")
        with suppress(OSError, ValueError):
            found.evaluation = object_in(folder / "evaluation.json")
        return found

    @property
    def state(self) -> str:
        """Returns which of STATES it is in."""
        if self.record is None:
            return "damaged"
        if self.record.active or self.record.finished:
            return "running" if self.record.active else "finished"
        return "failed" if ERROR.match(self.last_line()[1]) else "stopped"

    def told(self) -> str:
        """Returns its state in words: how far it came, or why it cannot be read."""
        if self.record is not None:
            return self.record.state()
        is_old = isinstance(self.error, OldLayout)
        return "damaged: a run of an earlier version" if is_old else f"damaged: {self.error.reason}"

    def progress(self) -> str:
        """Returns in one line how its training stands."""
        try:
            log = read_lines(self.folder / "log.jsonl")
            return watch.progress(log, self.record.updates, self.folder / "train.log")
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # cut since, or of odd values
            return self.record.state()

    def updated(self) -> datetime | None:
        """Returns when its records or its log were written to last."""
        times = []
        for name in (*RECORDS, "train.log"):
            with suppress(OSError):
                times.append((self.folder / name).stat().st_mtime)
        return datetime.fromtimestamp(max(times), UTC) if times else None

    def last_line(self) -> tuple[str, str]:
        """Returns the name of its newest log, and that log's last line: the error, where a command failed."""
        with suppress(OSError, ValueError):
            logs = [path for path in self.folder.glob("*.log") if path.is_file()]
            newest = max(logs, key=lambda path: path.stat().st_mtime)
            with newest.open("rb") as log:
                log.seek(max(0, newest.stat().st_size - TAIL))
                lines = log.read().decode(errors="replace").split("\n")
            return newest.name, next((line for line in reversed(lines) if line.strip()), "")
        return "", ""


@dataclass
class Survey:
    """The runs of a results folder, and the tables and experiments of which there is at least one."""

    results: Path
    runs: dict[Path, Found] = field(default_factory=dict)
    tables: list[tuple[Table, list[Entry]]] = field(default_factory=list)
    experiments: dict[str, list[Row]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # why tables cannot be shown

    def look(self, folder: Path) -> None:
        """Takes a run's folder."""
        self.runs[folder] = Found.of(folder, self.results, f"run-{len(self.runs)}")

    def load(self, folder: Path) -> Record:
        """Returns the record of a folder, which is read once; Damaged or OldLayout if it cannot be."""
        if folder not in self.runs:  # it began after the first look
            self.look(folder)
        if self.runs[folder].error:
            raise self.runs[folder].error
        return self.runs[folder].record

    def read(self, folder: Path) -> Record | None:
        """Returns the record of a folder, or None."""
        return self.runs[folder].record if folder in self.runs else None

    def add(self, table: Table) -> None:
        """Takes a table of which there is a run."""
        if any(run.folder(self.results) in self.runs for cell in table.cells for run in cell.runs):
            self.tables.append((table, entries.standing(table, self.results, self.read)))

    def overrides(self, table: Table) -> list[list[str]]:
        """Returns the KEY=VALUEs with which a table was run: those that two of its methods or more had."""
        own, methods = {key for run in table.runs() for key, _ in run.changes}, {}
        for row in (row for name in table.experiments for row in self.experiments.get(name, ())):
            changes = tuple(text for text in row.changes if text.partition("=")[0] not in own)
            methods.setdefault(changes, set()).add((row.attention, row.method))
        return [list(changes) for changes, of in methods.items() if changes and len(of) > 1]

    def planned(self, table: Table) -> list[Run]:
        """Returns the runs of a table that have not been started."""
        return [run for run in table.runs() if run.folder(self.results) not in self.runs]

    def counts(self) -> dict[str, int]:
        """Returns how many runs are in each of STATES."""
        found = Counter(run.state for run in self.runs.values())
        found["not started"] = len({str(run) for table, _ in self.tables for run in self.planned(table)})
        return {state: found[state] for state in STATES}


def survey(results: Path) -> Survey:
    """Returns all that is below a results folder; ValueError where no run is."""
    folders = run_folders(results)
    if not folders:
        what = "no folder such as lm/mini/linear_base/seed-1 with a run.json is below it"
        raise ValueError(f"{results} holds no run ({what}): give what train.sh or table.sh had as --results")
    found = Survey(results)
    for folder in shown(folders, "runs"):
        found.look(folder)
    for name in dict.fromkeys(experiment_of(folder, results).as_posix() for folder in folders):
        found.experiments[name] = listing.read(name, results, found.load)
    for name in shown([name for name in tables() if names_one(name, found.experiments)], "tables"):
        made, errors = [], []
        for scale in SCALES:
            try:
                made.append(Table(name, scale))
            except ValueError as error:  # it has one scale alone, or what it says cannot be
                errors.append(str(error))
        if errors and not made:
            found.refused.append(f"The table {name} cannot be shown: {errors[0]}")
        for table in made:
            found.add(table)
            for overrides in found.overrides(table):
                with suppress(ValueError):  # not every row can have them
                    found.add(Table(name, table.scale, overrides))
    return found


def names_one(table: str, experiments: Iterable[str]) -> bool:
    """Whether a table's YAML names one of the experiments; to make every table takes long."""
    text = (experiment.CONFIGS / "tables" / f"{table}.yaml").read_text(errors="replace")
    return any(name in text for name in experiments)


def shown(items: list, what: str):
    """Returns the items, with a bar on stderr that tells how many of them are done."""
    return track(items, what, console=Console(file=sys.stderr))
