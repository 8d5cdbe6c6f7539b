"""Lengthening: a run goes on from where a shorter one of the same settings ended."""

import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from fairseq_lrpe.checkpoint import read_checkpoint
from fairseq_lrpe.experiments import run_folder
from fairseq_lrpe.experiments.run import Run, run_folders
from fairseq_lrpe.experiments.run_folder import locked, read_json
from fairseq_lrpe.files import whole_file
from fairseq_lrpe.methods import canonical

LAST = "checkpoints/checkpoint_last.pt"


def begin(job, settings: dict) -> None:
    """Copies what the longest finished shorter run has done into the folder of a run that is to begin.

    The training becomes, to the bit, what it would have been: fairseq seeds every update by its number. Where
    the learning rate follows from the number of updates, nothing is copied. Both are told, and ``settings``
    keep from which run it goes on.
    """
    before = read_json(job.folder / "run.json")
    if (job.folder / LAST).exists():
        settings |= {"lengthened": before["lengthened"]} if "lengthened" in before else {}
        return
    for shorter, done in shorter_runs(job):
        try:
            with locked(shorter):
                check(job, settings, shorter, done)
                copy(shorter, job.folder)
        except ValueError as error:
            print(f"starting anew: {error}", flush=True)
        else:
            settings["lengthened"] = {"from": str(shorter), "updates": done}
            print(f"lengthening: {shorter} had {done} updates, {job.folder} goes on from there", flush=True)
            return


def shorter_runs(job) -> list[tuple[Path, int]]:
    """Returns (folder, updates) of the finished runs that differ from the job's in their updates alone."""
    found = []
    for folder in run_folders(job.results / job.run.experiment, Path()) if "updates" in job.cfg else ():
        try:
            told, record = read_json(folder / "run.json"), read_json(folder / "evaluation.json")
            same = "finished" in record and _but_updates(Run.of(told)) == _but_updates(job.run)
            if same and told["updates"] < job.updates:
                found.append((folder, told["updates"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a damaged folder is none to go on from
    return sorted(found, key=lambda pair: pair[1], reverse=True)


def _but_updates(run):
    changes = tuple(pair for pair in run.changes if pair[0] != "updates")
    return replace(run, method=canonical(run.method), changes=changes)


def check(job, settings: dict, shorter: Path, done: int) -> None:
    """Raises ValueError where a run of ``done`` updates is not the beginning of the job's."""
    last = shorter / LAST
    if not last.exists():
        raise ValueError(f"{last} is gone, which a longer run would go on from")
    config = {**settings["config"], "updates": done}
    run_folder.check_same(shorter, {**settings, "config": config})
    if (ended := run_folder.updates_done(shorter / "checkpoints")) != done:
        raise ValueError(f"{shorter} ended after {ended} of its {done} updates")
    schedule = read_checkpoint(last, "train the run first")["cfg"]["lr_scheduler"]
    schedule = vars(schedule) if isinstance(schedule, Namespace) else schedule
    given = {**job.cfg.train, **job.cfg.by_method.get(job.run.method, {})}
    follows = any(value == done and key not in given for key, value in schedule.items())
    if follows and schedule.get("lr_period_updates", 0) <= 0:
        name = schedule.get("_name", "its schedule")
        raise ValueError(f"in {shorter} the learning rate ({name}) follows from the number of updates")


def copy(shorter: Path, folder: Path) -> None:
    """Copies logs and checkpoints, last of all the one that says how far the training is.

    They are no links: fairseq writes over a checkpoint in its place.
    """
    (folder / "checkpoints").mkdir(exist_ok=True)
    for name in ("train.log", "log.jsonl", "checkpoints/checkpoint_best.pt", LAST):
        if (shorter / name).exists():
            with whole_file(folder / name) as part:
                shutil.copyfile(shorter / name, part)
