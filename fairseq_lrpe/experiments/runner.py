"""Doing a run: what it goes on from, its training or the trials it chooses from, its evaluations, its record.

A folder has run.json (settings, versions), command.sh, train.log and log.jsonl, checkpoints, eval-<name>.log
and evaluation.json: {"evaluations": {name: {"settings", metric: value, ..}}, "finished"}, of a run that chose
also {"chosen", "checkpoint", "tried": {trial: evaluations}}.
"""

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO

from omegaconf import DictConfig, OmegaConf

from fairseq_lrpe.commands import CommandFailed, run_command
from fairseq_lrpe.experiments import lengthen, run_folder
from fairseq_lrpe.experiments.epoch_end import epoch_end
from fairseq_lrpe.experiments.experiment import Experiment
from fairseq_lrpe.experiments.kinds import Kind
from fairseq_lrpe.experiments.launch import Launch, check_trackers, train_command, update_freq
from fairseq_lrpe.experiments.run import Run
from fairseq_lrpe.experiments.run_folder import InUse, Log, locked, read_json, write_json
from fairseq_lrpe.experiments.watch import watched
from fairseq_lrpe.files import REPOSITORY, readable, write_whole
from fairseq_lrpe.gpus import gpus_here

PATIENCE = 5  # seconds for what a killed process had started to end
REFUSAL = "fairseq_lrpe: "  # before the sentence with which fairseq-train refuses a call


@dataclass
class Job:
    """A run that is about to be done on this machine; ``cfg`` are its settings, with its changes."""

    experiment: Experiment
    run: Run
    results: Path
    launch: Launch = field(default_factory=Launch)
    more: list[str] = field(default_factory=list)  # fairseq-train's arguments beside ours
    lock: IO | None = None  # of the folder, once this process has it

    @cached_property
    def cfg(self) -> DictConfig:
        return self.experiment.settings(self.run)

    @property
    def kind(self) -> Kind:
        return self.experiment.kind

    @cached_property
    def folder(self) -> Path:
        return self.run.folder(self.results)

    @property
    def checkpoint(self) -> Path:
        """The one that is evaluated; of a run that chose, its best trial's."""
        own = f"checkpoints/{self.cfg.evaluate.checkpoint}"
        return self.folder / read_json(self.folder / "evaluation.json").get("checkpoint", own)

    @cached_property
    def updates(self) -> int:
        return self.kind.updates(self.cfg)

    @cached_property
    def starts_from(self) -> Path | None:
        first = self.experiment.starts_from(self.run)
        if not isinstance(first, Run):
            return first
        other = self.experiment.other(first.experiment)
        return Job(other, first, self.results).checkpoint

    def trials(self) -> list["Job"]:
        """The jobs from which this one chooses."""
        runs = self.experiment.trials(self.run)
        return [Job(self.experiment, run, self.results, self.launch, self.more) for run in runs]

    def call(self, command: list[str], name: str) -> Path:
        """Runs a command of an evaluation, which keeps the folder locked should this process be killed.

        Returns the log of all it printed.
        """
        log = self.folder / f"eval-{name}.log"
        log.unlink(missing_ok=True)
        run_command(command, log, cwd=REPOSITORY, pass_fds=[self.lock.fileno()] if self.lock else [])
        return log

    def check(self) -> None:
        """Raises ValueError, in one sentence, for what would fail later."""
        for trial in self.trials():
            trial.check()
            if not self.kind.evaluations(self.cfg):
                example = "evaluations.x={split: valid}"
                raise ValueError(f"{self.run} has no evaluation to choose by: give one, such as {example}")
        first = self.experiment.starts_from(self.run)
        if isinstance(first, Path) and not first.is_file():  # a run's checkpoint may still be trained
            raise ValueError(f"the checkpoint {first} does not exist, and no experiment has that name")
        update_freq(self.cfg.batch, self.launch.gpus, self.launch.nodes)
        sizes(self.kind, self.cfg)
        check_trackers(train_command(self))


def sizes(kind: Kind, cfg: DictConfig) -> dict[str, int]:
    """Returns {file: bytes} of a run's data: other sizes are other data. ValueError if a file is missing."""
    folder, files = REPOSITORY / cfg.data, kind.data(cfg)
    names = {os.path.relpath(path, folder): path for path in files}
    if missing := [name for name, path in names.items() if not path.is_file()]:
        remedy = "`bash data_prep/prepare.sh` lists what makes such data, or override data=FOLDER"
        raise ValueError(f"{folder} lacks {', '.join(missing)}: {remedy} with one that is prepared")
    return {name: path.stat().st_size for name, path in names.items()}


def finished(job: Job) -> bool:
    """Whether all that is asked of the run is on record."""
    record = read_json(job.folder / "evaluation.json")
    trials = {trial_name(job, trial) for trial in job.trials()}
    return "finished" in record and trials == set(record.get("tried", ())) and not missing(job, record)


def missing(job: Job, record: dict) -> list[str]:
    """Returns the evaluations that are not on record with the same settings."""
    known = record.get("evaluations", {})
    asked = {name: of_evaluation(job, name) for name in job.kind.evaluations(job.cfg)}
    differ = run_folder.differences
    return [x for x, now in asked.items() if x not in known or differ(known[x]["settings"], now)]


def of_evaluation(job: Job, name: str) -> dict:
    """Returns the settings of one evaluation, without what only fits it to the machine."""
    evaluate = OmegaConf.to_container(job.cfg.evaluate, resolve=True)
    flags = {key: value for key, value in evaluate["flags"].items() if key != "batch_size"}
    return {"checkpoint": evaluate["checkpoint"], **flags, **job.kind.evaluations(job.cfg)[name]}


class Refused(ValueError):
    """fairseq-train refused a call in one sentence."""


def do(job: Job) -> None:
    """Does what of a run is not done yet, in its folder, or on another node of it.

    A folder that is new and in which nothing was trained goes again if fairseq-train refuses the call.
    """
    is_new = not job.folder.exists()
    try:
        with locked(job.folder, PATIENCE if job.launch.nodes == 1 else 0) as job.lock:
            lead(job)
    except InUse:
        if job.launch.nodes == 1:
            raise
        follow(job)
    except Refused:
        if is_new and not any(job.folder.rglob("*.pt")):
            shutil.rmtree(job.folder)
            with suppress(OSError):  # from the first that is not empty on
                os.removedirs(job.folder.parent)
        raise


def lead(job: Job) -> None:
    """What the process that has the folder does."""
    trials, settings = job.trials(), describe(job)
    for one in (job, *trials):
        config = OmegaConf.to_container(one.cfg, resolve=True)
        run_folder.check_same(one.folder, {**settings, "config": config})
    if finished(job):
        print(f"finished before: {job.folder}")
        return
    if trials:
        choose(job, trials, {**settings, "updates": sum(trial.updates for trial in trials)})
    else:
        if not read_json(job.folder / "evaluation.json").get("finished"):
            train(job, settings)
        evaluate(job, missing(job, read_json(job.folder / "evaluation.json")))
    record = {"evaluations": {}, **read_json(job.folder / "evaluation.json")}
    write_json(job.folder / "evaluation.json", {**record, "finished": run_folder.now()})
    for name, measured in record["evaluations"].items():
        if told := job.kind.told(job.cfg, measured):
            print(f"{name}: {told}")
    print(f"finished: {job.folder}")


def train(job: Job, settings: dict) -> None:
    """Trains, from the last checkpoint on if there is one."""
    folder, before = job.folder, read_json(job.folder / "run.json")
    if before:
        settings["started"] = before["started"]
        print(f"continuing: {folder}")
    command = train_command(job)
    run_folder.mend(folder / "checkpoints")
    lengthen.begin(job, settings)
    write_json(folder / "run.json", settings)
    write_whole(folder / "command.sh", f"cd {shlex.quote(str(REPOSITORY))}\n{shlex.join(command)}\n")
    log = Log(folder, done=run_folder.updates_done(folder / "checkpoints"))
    tell_end(job, log)
    try:
        run_training(job, command, log)
    except CommandFailed as error:
        raise _explained(job, error) from None
    if speed := log.speed():
        keep(job, "training", speed)


def tell_end(job: Job, log: Log) -> None:
    """Completes the log with the end of an epoch that fairseq saved, and then was killed before it told."""
    last = job.folder / "checkpoints/checkpoint_last.pt"
    if log.entries and run_folder.updates_done(last.parent):
        told = {entry["train_num_updates"] for entry in log.in_order() if entry["kind"] == "train"}
        entry = epoch_end(last, job.updates, any("ppl" in one for one in log.in_order()))
        if entry and entry["train_num_updates"] not in told:
            log.add(entry)
        log.write()


def run_training(job: Job, command: list[str], log: Log) -> None:
    """Runs fairseq-train until the updates are done; nothing to do if a checkpoint has them."""
    print(shlex.join(command), flush=True)
    # Of a training that is done, fairseq would do one more update.
    if run_folder.updates_done(job.folder / "checkpoints") < job.updates:
        locks = [job.lock.fileno()] if job.lock else []
        with watched(str(job.run), job.updates, log, job.kind.watched(job)) as take:
            run_command(command, log.raw, take, cwd=REPOSITORY, pass_fds=locks)


def _explained(job, error):
    """What fairseq-train refused, in its sentence or as one about the YAML; else the error itself."""
    last = str(error).splitlines()[-1]
    if last.startswith(REFUSAL):
        return Refused(last.removeprefix(REFUSAL))
    found = re.search(r"error: (?:argument|unrecognized arguments:) --([\w-]+)", str(error))
    key = found and f"train.{found[1].replace('-', '_')}"
    if not found or OmegaConf.select(job.cfg, key) is None:
        return error
    reason, changes = str(error)[found.start() :].splitlines()[0], dict(job.run.changes)
    where = (
        f"{key}={changes[key]}" if key in changes else f"{readable(job.experiment.file_of(key))}, key {key}"
    )
    return Refused(f"{where}: fairseq-train refuses it ({reason})")


def follow(job: Job) -> None:
    """Trains, and writes nothing else: another node, which came first, has the folder.

    Whichever has fairseq's first process tells of the training.
    """
    for one in [trial for trial in job.trials() if not lost(trial)] if job.trials() else [job]:
        name = f"train-{socket.gethostname()}-{os.getpid()}.log"
        log = Log(one.folder, name, run_folder.updates_done(one.folder / "checkpoints"))
        run_training(one, train_command(one), log)


def choose(job: Job, trials: list[Job], settings: dict) -> None:
    """Does the trials and keeps on record what each measured, and the evaluations of the best.

    The best is by the first evaluation and its kind's first metric; all checkpoints but its own are removed.
    """
    write_json(job.folder / "run.json", settings)
    first, metric = next(iter(job.kind.evaluations(job.cfg))), next(iter(job.kind.metrics))
    tried, done, log = {}, 0, ""
    for trial in trials:
        if not lost(trial):
            do(trial)
        tried[trial_name(job, trial)] = read_json(trial.folder / "evaluation.json")["evaluations"]
        done += trial.updates
        log += json.dumps({"kind": "tried", "trial": trial_name(job, trial), "num_updates": done}) + "\n"
        write_whole(job.folder / "log.jsonl", log)
    sign = 1 if job.kind.metrics[metric] == "higher" else -1
    scores = [sign * measured[first][metric] for measured in tried.values()]
    best = max(range(len(trials)), key=lambda i: -math.inf if math.isnan(scores[i]) else scores[i])
    if not trials[best].checkpoint.exists():  # it once lost to one that is no longer asked for
        (trials[best].folder / "evaluation.json").unlink()
        do(trials[best])
    name, checkpoint = trial_name(job, trials[best]), trials[best].checkpoint
    for path in (path for trial in trials for path in trial.folder.glob("checkpoints/*.pt")):
        if path != checkpoint:
            path.unlink()
    path = os.path.relpath(checkpoint, job.folder)
    record = {"chosen": name, "checkpoint": path, "evaluations": tried[name], "tried": tried}
    write_json(job.folder / "evaluation.json", record)
    print(f"best of {len(tried)}: {name}")


def lost(trial: Job) -> bool:
    """Whether a trial was measured before and gave way to a better one, which alone kept its checkpoint."""
    record = read_json(trial.folder / "evaluation.json")
    first = next(iter(trial.kind.evaluations(trial.cfg)), None)
    return not trial.checkpoint.exists() and "finished" in record and first not in missing(trial, record)


def trial_name(job: Job, trial: Job) -> str:
    """Returns what a trial changes in the run that chooses it."""
    return " ".join(f"{key}={value}" for key, value in trial.run.changes if key not in dict(job.run.changes))


def evaluate(job: Job, names: Iterable[str]) -> None:
    """Measures the job's checkpoint and keeps each evaluation on record as soon as it is done."""
    for name in names:
        if not job.checkpoint.exists():
            raise ValueError(f"{job.checkpoint} is missing: remove {job.folder} to train it again")
        keep(job, name, {"settings": of_evaluation(job, name), **job.kind.evaluate(job, name)})


def keep(job: Job, name: str, measured: dict) -> None:
    """Puts what was measured on the run's record."""
    path = job.folder / "evaluation.json"
    record = read_json(path)
    write_json(path, {**record, "evaluations": {**record.get("evaluations", {}), name: measured}})


def describe(job: Job) -> dict:
    """Returns what run.json says of a run."""
    first = None
    if job.starts_from:
        with job.starts_from.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        first = {"path": str(readable(job.starts_from)), "sha256": sha256}
    return {
        **asdict(job.run),
        "kind": job.cfg.kind,
        "changes": dict(job.run.changes),
        "updates": job.updates,
        **asdict(job.launch),
        "gpu_names": [] if job.launch.cpu else list(gpus_here()),
        "flags": job.more,
        "config": OmegaConf.to_container(job.cfg, resolve=True),
        "starts_from": first,
        "data": sizes(job.kind, job.cfg),
        "versions": run_folder.versions(),
        "git": run_folder.git(),
        "started": run_folder.now(),
    }
