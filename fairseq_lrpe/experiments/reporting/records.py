"""Functions that read runs from their folders, or from a folder of recorded results such as docs/results."""

import math
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

from fairseq_lrpe.experiments.definition.kinds import KINDS
from fairseq_lrpe.experiments.definition.run import RECORDS, Run, experiment_of, run_folders
from fairseq_lrpe.experiments.execution import run_files
from fairseq_lrpe.experiments.execution.run_files import DamagedFile
from fairseq_lrpe.experiments.reporting.recorded_results import is_recorded, read_recorded
from fairseq_lrpe.experiments.reporting.run_record import RunRecord
from fairseq_lrpe.methods import canonical
from fairseq_lrpe.utils.errors import UserError

NEEDED = ("kind", "updates", "config")
"""Keys of run.json without which a run cannot be shown."""


def read_runs(results: Path, folders: Collection[Path] | None = None) -> list[RunRecord]:
    """Returns the records of the runs in a results folder or a folder of recorded results.

    ``folders`` are the run folders to read (default: all); those that do not exist are ignored.
    """
    if not results.is_dir():
        raise UserError(f"the results folder {results} does not exist: pass the folder of your runs")
    if is_recorded(results):
        return read_recorded(results, None if folders is None else lambda run: results / str(run) in folders)
    if folders is None:
        folders = run_folders(results)
    return [read_run(folder, results) for folder in folders if _is_run(folder)]


def read_runs_of(experiment: str, results: Path) -> list[RunRecord]:
    """Returns the records of an experiment's runs in a results folder or a folder of recorded results."""
    if is_recorded(results):
        return read_recorded(results, lambda run: run.experiment == experiment)
    return read_runs(results, run_folders(results, Path(experiment)))


def _is_run(folder):
    """Returns whether a folder contains a file of a run."""
    return any((folder / name).exists() for name in RECORDS)


def read_run(folder: Path, results: Path) -> RunRecord:
    """Returns the record of the run in ``folder``; an error in the run's files becomes its ``problem``.

    Args:
        folder: the folder of the run.
        results: the results folder that contains it.
    """
    experiment = experiment_of(folder, results)
    name, *changes, last = folder.relative_to(results / experiment).parts
    attention, _, method = name.partition("_")
    changes = tuple(_change(text) for text in changes)
    seed = int(last.removeprefix("seed-"))
    run = Run(experiment.as_posix(), attention, canonical(method), seed, changes)
    record = RunRecord(run, folder)
    try:
        record.settings = run_files.read_settings(folder, NEEDED)
        if not record.settings:
            raise DamagedFile(folder / "run.json", "is missing", run_files.REMEDY)
        if difference := run.other_run(record.settings):
            raise UserError(f"it is a copy of the run with {difference} (run.json): remove it")
        record.evaluation = run_files.read_evaluation(folder)
        _read_log(record)
        record.complete()
    except DamagedFile as error:
        record.problem = error.problem
    except (OSError, UserError) as error:
        record.problem = str(error)
    return record


def _change(folder_name):
    """Returns the changed setting (key, value) after which a folder is named."""
    return tuple(unquote(folder_name).split("=", 1))


def _read_log(record):
    """Sets the number of completed updates, the training time and the curve of a record from log.jsonl."""
    curve = KINDS[record.settings["kind"]].curve
    reached = 0
    seconds = []
    for entry in run_files.read_log(record.folder):
        updates = run_files.entry_updates(entry)
        reached = max(reached, updates)
        if entry["kind"] == "train":
            # An epoch that ended just before fairseq was killed has no time, and the sum is then NaN.
            seconds.append(entry.get("train_train_wall", math.nan))
        if curve and entry["kind"] == "valid" and curve.key in entry:
            record.curve[updates] = curve.factor * entry[curve.key]
    record.reached = reached
    record.seconds = float(sum(seconds)) if seconds else math.nan
