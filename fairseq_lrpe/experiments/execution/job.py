"""Jobs, which are runs with a results folder and the machine that executes them, and the states of runs."""

import threading
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import IO

from omegaconf import DictConfig, OmegaConf

from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.kinds import Kind
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.setting_differences import setting_differences
from fairseq_lrpe.experiments.definition.settings import train_flags
from fairseq_lrpe.experiments.execution import endings
from fairseq_lrpe.experiments.execution.run_directory import is_locked
from fairseq_lrpe.experiments.execution.run_files import evaluated_checkpoint, read_evaluation
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY


class State(StrEnum):
    """State of the execution of a run.

    ``Job.state`` is ABSENT, RUNNING, STOPPED, DAMAGED or FINISHED, because the folder of a run does not tell
    whether the run is queued on a cluster or has failed.
    """

    ABSENT = "absent"  # has no folder
    QUEUED = "queued"
    RUNNING = "running"  # in use by a process or thread
    STOPPED = "stopped"  # something is left to be trained or evaluated
    FAILED = "failed"  # stopped with an error
    DAMAGED = "damaged"  # has files that cannot be read
    OUTDATED = "other settings"  # has other settings than configs
    FINISHED = "finished"


@dataclass
class Job:
    """A run and the machine that executes it."""

    experiment: Experiment
    run: Run
    results: Path  # the folder to which runs are written
    gpus: int = 0  # per node, or processes per node if ``cpu``; 0 means one CPU process
    nodes: int = 1
    cpu: bool = True
    precision: str | None = "fp32"  # None if the machine will choose it
    compile: str | None = None  # mode of --compile, or None for that of the experiment
    report_to: str | None = None  # the logger of fairseq that is used, "tensorboard" or "wandb"
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
    def recorded_config(self) -> dict:
        """The settings as recorded in run.json: a dictionary in which ``starts_from`` is :attr:`start_name`.

        Paths in the data folder, such as ``train.embed_path``, are those without an override of ``data``.
        """
        configured = OmegaConf.merge(self.cfg, {"data": self.experiment.without_overrides.cfg.data})
        config = OmegaConf.to_container(configured, resolve=True)
        config["data"] = self.cfg.data
        config["starts_from"] = self.start_name
        return config

    @cached_property
    def start_name(self) -> str | None:
        """The value of ``starts_from`` in the YAML file, or the checkpoint or run that overrides select."""
        start = self.experiment.starts_from(self.run)
        if start is None:
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
        """{name with underscores: value} of the flags in ``train`` and ``by_method``, and of --compile.

        Raises:
            UserError: if one of fairseq's own models, which have no flag --compile, is to be compiled.
        """
        flags = train_flags(self.cfg, self.run.method)
        if self.compile:
            flags["compile"] = self.compile
        if flags.get("compile") and self.run.method == "fairseq":
            raise UserError("fairseq's own models cannot be compiled: omit --compile and train.compile")
        return flags

    @cached_property
    def folder(self) -> Path:
        return self.moved or self.run.folder(self.results)

    @property
    def record(self) -> dict:
        """The content of evaluation.json."""
        return read_evaluation(self.folder)

    @property
    def state(self) -> State:
        """The state of the run; it is RUNNING if another process or thread uses its folder."""
        if not self.folder.exists():
            return State.ABSENT
        if self.lock is None and is_locked(self.folder):
            return State.RUNNING
        try:
            record = self.record
        except UserError:
            return State.DAMAGED
        return State.FINISHED if self._is_finished(record) else State.STOPPED

    def _is_finished(self, record):
        """Returns whether nothing is left to be trained or evaluated according to ``record``.

        A trial whose checkpoint was removed in favor of a better trial needs only its first evaluation.
        """
        trials = self.trials()
        names = {self.trial_name(trial) for trial in trials}
        if "finished" not in record or names != set(record.get("tried", ())):
            return False
        if not trials and not self.is_trained:
            return False
        missing = self.missing_evaluations(record)
        if not missing:
            return True
        is_trial = bool(self.experiment.cfg.choose) and not trials
        first = next(iter(self.kind.evaluations(self.cfg)))
        return is_trial and first not in missing and not self.checkpoint.exists()

    @property
    def is_trained(self) -> bool:
        """Whether the run needs no further updates. It must be a run that does not choose among trials."""
        if not self.kind.trains:
            return True
        return endings.has_ended(self.record, endings.logged_updates(self.folder), self.updates)

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to evaluate; a run that chooses among trials has a link to the best trial's."""
        return evaluated_checkpoint(self.folder, self.cfg.evaluate.checkpoint)

    @cached_property
    def updates(self) -> int:
        return self.kind.updates(self.cfg)

    @cached_property
    def starts_from(self) -> Path | None:
        """The checkpoint that initializes the model, or None."""
        start = self.experiment.starts_from(self.run)
        return self.start_job(start).checkpoint if isinstance(start, Run) else start

    def start_job(self, start: Run) -> "Job":
        """Returns the job of ``start``, the run whose model initializes this job's model."""
        return Job(self.experiment.other(start.experiment), start, self.results)

    def trials(self) -> list["Job"]:
        return [replace(self, run=run, lock=None) for run in self.experiment.trials(self.run)]

    def trial_name(self, trial: "Job") -> str:
        """Returns the changes that distinguish a trial from this run, such as "train.lr=0.001"."""
        shared = dict(self.run.changes)
        return " ".join(f"{key}={value}" for key, value in trial.run.changes if key not in shared)

    def evaluation_settings(self, name: str) -> dict:
        """Returns the settings of the evaluation ``name`` that identify its result, not the batch size."""
        evaluate = OmegaConf.to_container(self.cfg.evaluate, resolve=True)
        settings = {"checkpoint": evaluate["checkpoint"], **evaluate["flags"]}
        settings.pop("batch_size", None)
        return settings | self.kind.evaluations(self.cfg)[name]

    def missing_evaluations(self, record: dict) -> list[str]:
        """Returns the names of the evaluations that ``record`` lacks, or contains with other settings."""
        recorded = record.get("evaluations", {})
        missing = []
        for name in self.kind.evaluations(self.cfg):
            settings = recorded.get(name, {}).get("settings")
            if name not in recorded or setting_differences(settings, self.evaluation_settings(name)):
                missing.append(name)
        return missing

    @property
    def command_options(self) -> dict[str, object]:
        """The keyword arguments of ``run_command`` for the commands of this job.

        Commands inherit the lock, so that the folder stays locked if this process is killed before they end.
        """
        locks = [self.lock.fileno()] if self.lock else []
        environment = self.environment
        if self.report_to == "wandb":
            environment = {**environment, "WANDB_NAME": str(self.run)}  # otherwise, all are "checkpoints"
        return {
            "environment": environment,
            "stop": self.stop,
            "cwd": REPOSITORY,
            "pass_fds": locks,
        }
