"""The extension of a finished run to more updates, with otherwise the same settings, as a new run."""

import shutil
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fairseq_lrpe.experiments.definition.run import Run, run_folders
from fairseq_lrpe.experiments.execution import run_directory
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.progress import say
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.execution.run_files import read_evaluation, read_settings, write_json
from fairseq_lrpe.methods import canonical
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import atomic_file

LAST = f"checkpoints/{run_directory.LAST}"
FILES = ("train.log", "log.jsonl", "checkpoints/checkpoint_best.pt", LAST)  # the last one makes it resume


def start(job: Job, settings: dict) -> None:
    """Copies logs and checkpoints of the longest shorter run that ``check`` accepts into a new job's folder.

    The resumed training then gives exactly the result of an uninterrupted one, since fairseq seeds each
    update by its number. ``settings``, the content of run.json, get the key "extended" with the name of the
    copied run, which they keep when the job is resumed.
    """
    if (job.folder / LAST).exists():
        before = read_settings(job.folder)
        if "extended" in before:
            settings["extended"] = before["extended"]
        return
    for shorter, updates in shorter_runs(job):
        try:
            with locked(shorter):
                check(job, settings, shorter, updates)
                settings["extended"] = {"from": str(shorter.relative_to(job.results)), "updates": updates}
                write_json(job.folder / "run.json", settings)  # a folder without it is not resumed
                copy_files(shorter, job.folder)
        except UserError as error:
            say(job, f"not extending a shorter run: {error}")
        else:
            say(job, f"extending: {job.folder} resumes after the {updates} updates of {shorter}")
            return


def copy_files(shorter: Path, folder: Path) -> None:
    """Copies the logs and checkpoints of a shorter run to the folder of another run."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    for name in FILES:
        if (shorter / name).exists():
            with atomic_file(folder / name) as part:
                shutil.copyfile(shorter / name, part)  # no link, since fairseq overwrites it in place


def shorter_runs(job: Job) -> list[tuple[Path, int]]:
    """Returns (folder, updates) of the finished runs that differ from the job's run only in fewer updates.

    The run with the most updates comes first.
    """
    if "updates" not in job.cfg:
        return []
    shorter = []
    for folder in run_folders(job.results / job.run.experiment, Path()):
        with suppress(UserError):  # damaged folders are ignored
            settings = read_settings(folder)
            record = read_evaluation(folder)
            if not settings or "finished" not in record:
                continue
            is_same = _without_updates(Run.of(settings)) == _without_updates(job.run)
            if is_same and settings["updates"] < job.updates:
                shorter.append((folder, settings["updates"]))
    return sorted(shorter, key=lambda pair: pair[1], reverse=True)


def _without_updates(run):
    changes = tuple(pair for pair in run.changes if pair[0] != "updates")
    return replace(run, method=canonical(run.method), changes=changes)


def check(job: Job, settings: dict, shorter: Path, updates: int) -> None:
    """Raises UserError if the job cannot continue from the shorter run.

    The job can continue if settings and data are the same, the last checkpoint is that of the shorter run's
    last update, the learning rate does not depend on the total number of updates, and the memory of a
    language model, if it has one, is empty after the last update.
    """
    config = {**settings["config"], "updates": updates}
    run_directory.check_settings(shorter, {**settings, "config": config})
    completed = run_directory.completed_updates(shorter / "checkpoints")
    if completed != updates:
        raise UserError(f"{shorter} has a checkpoint of {completed} of its {updates} updates")
    checkpoint = run_directory.read_checkpoint(shorter / LAST, "train the run first")
    schedule = _as_mapping(checkpoint["cfg"]["lr_scheduler"])
    depends = any(value == updates and key not in job.train_flags for key, value in schedule.items())
    if depends and schedule.get("lr_period_updates", 0) <= 0:
        raise UserError(f"in {shorter} the learning rate depends on the total number of updates")
    task = _as_mapping(checkpoint["cfg"]["task"])
    has_memory = task.get("memory") == "state" or task.get("memory_length")  # of the task memory_lm
    # An epoch starts with an empty memory.
    if has_memory and checkpoint["extra_state"]["train_iterator"]["iterations_in_epoch"]:
        raise UserError(
            f"{shorter} ends within an epoch, and its checkpoint lacks the memory: extend a run that ends "
            "with an epoch"
        )


def _as_mapping(cfg: Namespace | Mapping) -> Mapping:
    """Returns the settings of a component of fairseq as a mapping; some components have a namespace."""
    return vars(cfg) if isinstance(cfg, Namespace) else cfg
