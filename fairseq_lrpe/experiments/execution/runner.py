"""Executes a run: trains or chooses among trials, evaluates, and records the results.

A run's folder contains run.json (settings, versions), command.sh, train.log and log.jsonl, checkpoints,
eval-<name>.log and evaluation.json: {"evaluations": {name: {"settings", metric: value, ..}}, "finished"}.
If the run chooses among trials, this file also has {"chosen", "checkpoint", "tried": {trial: evaluations}}.
If the training ended before its last update, this file has {"ended"}; see ``endings``.
"""

import hashlib
import itertools
import json
import math
import os
import shlex
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import IO

from omegaconf import DictConfig, OmegaConf

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import endings, extend_run, run_directory
from fairseq_lrpe.experiments.execution.launch import train_command, visible_gpus
from fairseq_lrpe.experiments.execution.progress import show_training
from fairseq_lrpe.experiments.execution.reported_batch import ReportedBatch
from fairseq_lrpe.experiments.execution.run_directory import (
    InUse,
    is_locked,
    locked,
)
from fairseq_lrpe.experiments.execution.run_files import (
    REMEDY,
    entry_updates,
    read_evaluation,
    read_log,
    read_settings,
    write_json,
)
from fairseq_lrpe.experiments.execution.run_log import Log, training_speed
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import (
    REPOSITORY,
    atomic_file,
    check_colon,
    display_path,
    file_exists,
    output_folder,
    write_atomic,
)
from fairseq_lrpe.utils.gpus import gpus_here
from fairseq_lrpe.utils.launchers import UNSET_IN_SHELL
from fairseq_lrpe.utils.subprocesses import CommandFailed, CommandRejected, run_command

POLL_SECONDS = 0.3
LOCK_TIMEOUT = 5  # seconds to wait until the subprocesses of a killed process have ended
MACHINE = ("gpus", "nodes", "cpu", "precision", "rendezvous")  # attributes of a job in run.json


@dataclass
class Job:
    """A run to execute on this machine."""

    experiment: Experiment
    run: Run
    results: Path  # the folder to which runs are written
    gpus: int = 0  # per node, or processes per node if ``cpu``; 0 means one CPU process
    nodes: int = 1
    cpu: bool = True
    precision: str | None = "fp32"  # None if the machine will choose it
    compile: str | None = None  # mode of --compile, or None for that of the experiment
    rendezvous: str | None = None  # HOST:PORT at which the nodes connect
    extra_flags: list[str] = field(default_factory=list)  # further arguments of fairseq-train
    environment: dict[str, str] = field(default_factory=dict)  # of its commands, besides this process's
    stop: threading.Event | None = None  # ends the commands of a run in a thread when it is set
    lock: IO | None = None  # the open lock file of the folder while this process holds the lock
    moved: Path | None = None  # the run's folder if it is not at its path below ``results``

    @cached_property
    def cfg(self) -> DictConfig:
        return self.experiment.settings(self.run)

    @property
    def config(self) -> dict:
        """The settings as a dictionary, in which ``starts_from`` is :attr:`start_name`.

        Paths in the data folder, such as ``train.embed_path``, are those without an override of ``data``.
        """
        own = {"data": self.cfg.data, "starts_from": self.start_name}
        configured = OmegaConf.merge(self.cfg, {"data": self.experiment.without_overrides.cfg.data})
        return OmegaConf.to_container(configured, resolve=True) | own

    @cached_property
    def start_name(self) -> str | None:
        """``starts_from`` of the YAML file, or the checkpoint or run that overrides select instead."""
        if (start := self.experiment.starts_from(self.run)) is None:
            return None
        configured = self.experiment.without_overrides
        if replace(self, experiment=configured).starts_from == self.starts_from:
            return configured.cfg.starts_from
        return str(start) if isinstance(start, Run) else self.experiment.cfg.starts_from

    @property
    def kind(self) -> Kind:
        return self.experiment.kind

    @property
    def train_flags(self) -> dict[str, object]:
        """{name with underscores: value} of the flags in ``train``, in ``by_method``, and of --compile.

        Raises a UserError for fairseq's own models, which have no flag --compile.
        """
        flags = {**self.cfg.train, **self.cfg.by_method.get(self.run.method, {})}
        flags |= {"compile": self.compile} if self.compile else {}
        if flags.get("compile") and self.run.method == "fairseq":
            raise UserError("fairseq's own models cannot be compiled: omit --compile and train.compile")
        return flags

    @cached_property
    def folder(self) -> Path:
        return self.moved or self.run.folder(self.results)

    @property
    def record(self) -> dict:
        return read_evaluation(self.folder)

    @property
    def state(self) -> str:
        """One of "absent", "in use" (by another process or thread), "damaged", "partial" and "finished".

        A trial is also finished if its checkpoint was removed in favor of a better trial.
        """
        if not self.folder.exists():
            return "absent"
        if self.lock is None and is_locked(self.folder):
            return "in use"
        try:
            record, trials = self.record, self.trials()
        except UserError:
            return "damaged"
        missing = missing_evaluations(self, record)
        tried = set(record.get("tried", ()))
        if "finished" not in record or {trial_name(self, x) for x in trials} != tried:
            return "partial"
        if not (trials or self.is_trained):
            return "partial"
        first = next(iter(self.kind.evaluations(self.cfg)), None)
        is_trial = bool(self.experiment.cfg.choose) and not trials
        is_discarded = is_trial and first not in missing and not self.checkpoint.exists()
        return "finished" if is_discarded or not missing else "partial"

    @property
    def is_trained(self) -> bool:
        """Whether the training of the run, which does not choose among trials, needs no further updates."""
        logged = endings.logged_updates(self.folder)
        return not self.kind.trains or endings.has_ended(self.record, logged, self.updates)

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to evaluate; a run that chooses among trials has a link to the best one."""
        return run_directory.evaluated_checkpoint(self.folder, self.cfg.evaluate.checkpoint)

    @cached_property
    def updates(self) -> int:
        return self.kind.updates(self.cfg)

    @cached_property
    def starts_from(self) -> Path | None:
        initial = self.experiment.starts_from(self.run)
        if not isinstance(initial, Run):
            return initial
        return self.start_job(initial).checkpoint

    def trials(self) -> list["Job"]:
        return [replace(self, run=run, lock=None) for run in self.experiment.trials(self.run)]

    def say(self, text: str) -> None:
        if self.stop is None:
            print(text, flush=True)

    def call(self, command: list[str], name: str) -> Path:
        log = self.folder / f"eval-{name}.log"
        log.unlink(missing_ok=True)
        self.run_command(command, log)
        return log

    def run_command(self, command: list[str], log: Path, on_line=lambda line: None) -> None:
        """Runs a command, which inherits the lock and keeps the folder locked if this process is killed."""
        locks = [self.lock.fileno()] if self.lock else []
        run_command(command, log, on_line, self.environment, self.stop, cwd=REPOSITORY, pass_fds=locks)

    def check(self) -> None:
        """Raises UserError for errors that would otherwise occur during or after training."""
        for trial in self.trials():
            trial.check()
            if not self.kind.evaluations(self.cfg):
                example = "evaluations.x={split: valid}"
                raise UserError(f"{self.run} needs an evaluation to compare its trials, such as {example}")
        self.check_start()
        data_sizes(self.kind, self.cfg)
        if self.kind.trains:
            train_command(self)
        else:
            self.kind.flags(self)

    def check_start(self) -> None:
        initial = self.experiment.starts_from(self.run)
        if isinstance(initial, Path) and not file_exists(initial):
            remedy = "pass a checkpoint or an experiment"
            raise UserError(f"starts_from: {initial} does not exist and is no experiment: {remedy}")
        if isinstance(initial, Run) and not self.starts_from.is_file():
            words = ["lrpe", "train", initial.experiment, initial.method, "--attention", initial.attention]
            words += ["--seeds", str(initial.seed), "--results", str(display_path(self.results))]
            command = shlex.join([*words, *(f"{key}={value}" for key, value in initial.changes)])
            raise UserError(f"{self.run} starts from {initial}, which is not trained: `{command}` trains it")
        if isinstance(initial, Run) and endings.is_diverged(self.start_job(initial).record):
            raise UserError(
                f"{self.run} starts from {initial}, whose training diverged: change the settings of "
                f"{initial.experiment}, or set starts_from to another checkpoint"
            )

    def start_job(self, initial: Run) -> "Job":
        return Job(self.experiment.other(initial.experiment), initial, self.results)


def data_sizes(kind: Kind, cfg: DictConfig) -> dict[str, int]:
    check_colon(REPOSITORY / cfg.data)
    folder, remedy = REPOSITORY / cfg.data, "create these files with `lrpe prepare` or fairseq-preprocess"
    names = {os.path.relpath(path, folder): path for path in kind.data(cfg)}
    if absent := [name for name, path in names.items() if not file_exists(path)]:
        bin_folder = next(iter(kind.folders(cfg)), folder)
        if command := prepare_command(display_path(bin_folder)):
            vectors = " --vectors glove.840B.300d.txt" if cfg.train.get("embed_path") else ""
            first = f"remove {display_path(bin_folder)}, then " if bin_folder.is_dir() else ""
            remedy = f"{first}`{command}{vectors}` prepares it"
        raise UserError(f"{folder} lacks {', '.join(absent)}: {remedy}, or override data=FOLDER")
    for path in names.values():
        layout.check_file(path)
    return {name: path.stat().st_size for name, path in names.items()}


def missing_evaluations(job: Job, record: dict) -> list[str]:
    recorded = record.get("evaluations", {})
    wanted = {name: evaluation_settings(job, name) for name in job.kind.evaluations(job.cfg)}
    differ = run_directory.setting_differences
    return [x for x, now in wanted.items() if x not in recorded or differ(recorded[x].get("settings"), now)]


def evaluation_settings(job: Job, name: str) -> dict:
    """Returns the settings of an evaluation, without those that depend on the machine."""
    evaluate = OmegaConf.to_container(job.cfg.evaluate, resolve=True)
    flags = {key: value for key, value in evaluate["flags"].items() if key != "batch_size"}
    return {"checkpoint": evaluate["checkpoint"], **flags, **job.kind.evaluations(job.cfg)[name]}


def execute_run(job: Job) -> None:
    """Executes the missing parts of a run, or joins a training that another node has started.

    If fairseq rejects the arguments of a new run, its folder is removed.
    """
    is_new = not job.folder.exists()
    with output_folder(job.folder):
        try:
            with locked(job.folder, LOCK_TIMEOUT if job.nodes == 1 else 0) as job.lock:
                run_primary(job)
        except InUse:
            if job.nodes == 1:
                raise
            run_worker(job)
        except CommandRejected:
            if is_new and not any(job.folder.rglob("*.pt")):
                shutil.rmtree(job.folder)
            raise
        finally:
            job.lock = None


def run_primary(job: Job) -> None:
    trials, settings = job.trials(), run_settings(job)
    for one in (job, *trials):
        own = {"config": one.config, "changes": dict(one.run.changes)}
        run_directory.check_settings(one.folder, settings | own)
    if job.state == "finished":
        job.say(f"already {endings.describe(job.record, settings['updates'])}: {job.folder}")
        return
    if trials:
        settings["updates"] = sum(trial.updates for trial in trials)
        choose(job, trials, settings)
    elif not job.kind.trains:
        write_json(job.folder / "run.json", settings)
    elif not job.is_trained:
        train(job, settings)
    for name in evaluate(job):
        job.say(f"{job.run}: evaluated {name}")
    record = {"evaluations": {}, **job.record, "finished": run_directory.timestamp()}
    write_json(job.folder / "evaluation.json", record)
    for name, measured in record["evaluations"].items():
        if text := job.kind.describe(job.cfg, measured):
            job.say(f"{name}: {text}")
    job.say(f"{endings.describe(record, settings['updates'])}: {job.folder}")


def train(job: Job, settings: dict) -> None:
    folder, before = job.folder, read_settings(job.folder)
    if before:
        settings["started"] = before["started"]
        job.say(f"resuming: {folder}")
    run_directory.repair_checkpoints(folder / "checkpoints")
    extend_run.start(job, settings)
    command = resumed_command(job)
    completed = run_directory.completed_updates(folder / "checkpoints")
    if completed < job.updates:  # otherwise, evaluations of the trained model are kept
        (folder / "evaluation.json").unlink(missing_ok=True)
    write_json(folder / "run.json", settings)
    lines = (f"cd {shlex.quote(str(REPOSITORY))}", shlex.join(command), "")
    write_atomic(folder / "command.sh", "\n".join((UNSET_IN_SHELL, *lines)))
    log = Log(folder, completed=completed)
    log.restore(folder / "checkpoints", job.updates)
    if ended := run_training(job, command, log):
        write_json(folder / "evaluation.json", {**job.record, "ended": ended})
    if speed := training_speed(folder):
        record_evaluation(job, "training", speed)


def resumed_command(job: Job) -> list[str]:
    last = job.folder / "checkpoints" / run_directory.LAST
    checkpoint = run_directory.read_checkpoint(last, REMEDY) if last.exists() else None
    return endings.with_time_limit(train_command(job), checkpoint)


def run_training(job: Job, command: list[str], log: Log) -> dict | None:
    """Trains until the last update or until the training ends early; then returns its ending."""
    job.say(shlex.join(command))
    # fairseq would train a finished model for one more update.
    completed = run_directory.completed_updates(job.folder / "checkpoints")
    sizes = endings.log_sizes(job.folder)
    logs = list(sizes)
    if completed < job.updates and endings.last_reason(logs) not in endings.FINAL:
        failed = None
        try:
            with show_training(job, log) as record:
                job.run_command(command, log.path, ReportedBatch(job, log.parse).before(record))
        except CommandFailed as error:
            failed = error
        now = endings.log_sizes(job.folder)
        logs = [path for path, size in now.items() if size != sizes.get(path)]
        if failed and endings.last_reason(logs) != endings.DIVERGED:
            raise failed
    if job.lock is None:  # the node that holds the lock records the ending
        return None
    if not logs:  # the training was copied
        return None
    # The node that holds the lock is not always the one of rank 0, whose log has the metrics.
    lines = itertools.chain.from_iterable(map(endings.last_training, logs))
    entries = filter(None, map(log.parse, lines))
    reached = max(map(entry_updates, entries), default=0)
    return endings.find_ending(logs, command, max(completed, reached), job.updates)


def run_worker(job: Job) -> None:
    """Joins the training of the node that holds the lock; writes only the log of this node."""
    trials = [trial for trial in job.trials() if trial.state != "finished"]
    for one in trials if job.trials() else [job]:
        name = f"train-{socket.gethostname()}-{os.getpid()}.log"
        log = Log(one.folder, name, run_directory.completed_updates(one.folder / "checkpoints"))
        run_training(one, resumed_command(one), log)
        while is_locked(one.folder):  # the other node joins the next training after this run's evaluation
            time.sleep(POLL_SECONDS)


def choose(job: Job, trials: list[Job], settings: dict) -> None:
    """Executes the trials, and records the evaluations and the checkpoint of the best for the run.

    The first metric of the kind in the first evaluation decides. All other checkpoints are removed.
    """
    write_json(job.folder / "run.json", settings)
    first, metric = next(iter(job.kind.evaluations(job.cfg))), next(iter(job.kind.metrics))
    tried, updates, log = {}, 0, ""
    for trial in trials:
        if trial.state == "finished":
            job.say(f"already finished: {trial.folder}")
        else:
            execute_run(trial)
        tried[trial_name(job, trial)] = trial.record["evaluations"]
        updates += trial.record.get("ended", {"updates": trial.updates})["updates"]
        log += json.dumps({"kind": "tried", "trial": trial_name(job, trial), "num_updates": updates}) + "\n"
        write_atomic(job.folder / "log.jsonl", log)
    sign = 1 if job.kind.metrics[metric] == "higher" else -1
    scores = [sign * measured[first][metric] for measured in tried.values()]
    scores = [-math.inf if math.isnan(score) else score for score in scores]
    best = trials[scores.index(max(scores))]
    ended = best.record.get("ended")
    outcome = {"evaluations": tried[trial_name(job, best)], "tried": tried}
    if ended is not None:
        outcome["ended"] = {**ended, "updates": updates}
    if endings.is_diverged(best.record):  # then, all trials diverged
        write_json(job.folder / "evaluation.json", outcome)
        return
    if not best.checkpoint.exists():  # it was removed in favor of a trial that is no longer listed
        (best.folder / "evaluation.json").unlink()
        execute_run(best)
    name, checkpoint = trial_name(job, best), best.checkpoint
    for path in (path for trial in trials for path in trial.folder.glob("checkpoints/*.pt")):
        if path != checkpoint:
            path.unlink()
    own = job.folder / "checkpoints" / checkpoint.name
    link(checkpoint, own)
    entries = [entry for entry in read_log(best.folder) if entry["kind"] != "train_inner"]
    write_atomic(job.folder / "log.jsonl", log + "".join(json.dumps(entry) + "\n" for entry in entries))
    path = str(own.relative_to(job.folder))
    write_json(job.folder / "evaluation.json", {"chosen": name, "checkpoint": path, **outcome})
    job.say(f"best of {len(tried)}: {name}")


def link(checkpoint: Path, own: Path) -> None:
    own.parent.mkdir(exist_ok=True)
    if own.exists() and own.samefile(checkpoint):  # os.replace would then not remove the temporary link
        return
    with atomic_file(own) as part:
        part.unlink(missing_ok=True)
        try:
            os.link(checkpoint, part)
        except OSError:
            shutil.copyfile(checkpoint, part)


def trial_name(job: Job, trial: Job) -> str:
    return " ".join(f"{key}={value}" for key, value in trial.run.changes if key not in dict(job.run.changes))


def evaluate(job: Job) -> Iterator[str]:
    """Evaluates what the record of the run lacks, and yields each name after its values are recorded."""
    names = missing_evaluations(job, job.record)
    if endings.is_diverged(job.record):
        # The other metrics count as NaN, too; see RunRecord.value.
        for name in names:
            worst = {next(iter(job.kind.metrics)): math.nan}
            record_evaluation(job, name, {"settings": evaluation_settings(job, name), **worst})
            yield name
        return
    if names and job.kind.trains and not job.checkpoint.exists():
        existing = ", ".join(sorted(path.name for path in job.folder.glob("checkpoints/*.pt")))
        remedy = f"set evaluate.checkpoint= to one of {existing}" if existing else "remove the run's folder"
        raise UserError(f"{job.checkpoint} does not exist: {remedy}")
    for name, measured in job.kind.evaluate_all(job, names):
        record_evaluation(job, name, {"settings": evaluation_settings(job, name), **measured})
        yield name


def record_evaluation(job: Job, name: str, measured: dict) -> None:
    record = job.record
    evaluations = {**record.get("evaluations", {}), name: measured}
    write_json(job.folder / "evaluation.json", {**record, "evaluations": evaluations})


def check_finished(job: Job) -> None:
    """Raises a UserError if a run's files are damaged, or its data or settings are not the job's."""
    now = read_settings(job.folder)
    now |= {**asdict(job.run), "changes": dict(job.run.changes)}
    now |= {"config": job.config, "flags": job.extra_flags, "data": data_sizes(job.kind, job.cfg)}
    if job.precision is not None:
        now["precision"] = job.precision
    if job.starts_from is None or job.starts_from.is_file():  # it may have been removed
        now["starts_from"] = initial_checkpoint(job)
    run_directory.check_settings(job.folder, now)
    recorded = read_settings(job.folder)
    if recorded["config"].get("starts_from") != job.start_name:  # earlier versions have other names for it
        recorded["config"]["starts_from"] = job.start_name
        write_json(job.folder / "run.json", recorded)


def initial_checkpoint(job: Job) -> dict | None:
    if job.starts_from is None:
        return None
    sha256 = file_digest(job.starts_from, job.starts_from.stat().st_mtime_ns)
    return {"path": str(display_path(job.starts_from)), "sha256": sha256}


@cache  # many runs start from one checkpoint
def file_digest(path: Path, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_settings(job: Job) -> dict:
    environment = {**os.environ, **job.environment}
    names = dict(zip(visible_gpus(), gpus_here(), strict=True))
    share = job.environment.get("CUDA_VISIBLE_DEVICES", ",".join(names)).split(",")
    return {
        **asdict(job.run),
        "kind": job.cfg.kind,
        "changes": dict(job.run.changes),
        "updates": job.updates,
        **{name: getattr(job, name) for name in MACHINE},
        "compile": job.train_flags.get("compile"),
        "gpu_names": [] if job.cpu else [names[gpu] for gpu in share],
        "processor": run_directory.processor(environment, max(job.gpus, 1)),
        "flags": job.extra_flags,
        "config": job.config,
        "starts_from": initial_checkpoint(job),
        "data": data_sizes(job.kind, job.cfg),
        "versions": run_directory.installed_versions(),
        "git": run_directory.git_revision(),
        "started": run_directory.timestamp(),
    }
