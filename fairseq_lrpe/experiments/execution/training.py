"""Training of a run's model with fairseq-train, on this node or together with other nodes."""

import os
import shlex
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from fairseq_lrpe import extensions
from fairseq_lrpe.experiments.execution import endings, extend_run, run_directory
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.launch import train_command
from fairseq_lrpe.experiments.execution.progress import say, show_training
from fairseq_lrpe.experiments.execution.reported_batch import ReportedBatch
from fairseq_lrpe.experiments.execution.run_directory import is_locked
from fairseq_lrpe.experiments.execution.run_files import (
    REMEDY,
    entry_updates,
    read_settings,
    record_evaluation,
    write_json,
)
from fairseq_lrpe.experiments.execution.run_log import Log, training_speed
from fairseq_lrpe.utils.files import REPOSITORY, write_atomic
from fairseq_lrpe.utils.launchers import UNSET_IN_SHELL
from fairseq_lrpe.utils.subprocesses import CommandFailed, run_command

POLL_SECONDS = 0.3


def prepare_training(job: Job, settings: dict) -> tuple[list[str], Log]:
    """Writes the files of a run that are needed before its training; returns the command and the log.

    Args:
        job: the run to train.
        settings: the content of run.json.
    """
    folder = job.folder
    checkpoints = folder / "checkpoints"
    before = read_settings(folder)
    if before:
        settings["started"] = before["started"]
        say(job, f"resuming: {folder}")
    run_directory.repair_checkpoints(checkpoints)
    extend_run.start(job, settings)
    command = resumed_command(job)
    completed = run_directory.completed_updates(checkpoints)
    if completed < job.updates:  # otherwise, evaluations of the trained model are kept
        (folder / "evaluation.json").unlink(missing_ok=True)
    write_json(folder / "run.json", settings)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in extensions.variables().items()]
    script = [UNSET_IN_SHELL, *exports, f"cd {shlex.quote(str(REPOSITORY))}", shlex.join(command), ""]
    write_atomic(folder / "command.sh", "\n".join(script))
    log = Log(folder, completed=completed)
    log.restore(checkpoints, job.updates)
    return command, log


def resumed_command(job: Job) -> list[str]:
    """Returns the training command; a run that has a last checkpoint resumes from it."""
    last = job.folder / "checkpoints" / run_directory.LAST
    checkpoint = run_directory.read_checkpoint(last, REMEDY) if last.exists() else None
    return endings.with_time_limit(train_command(job), checkpoint)


def train(job: Job, command: list[str], log: Log) -> dict | None:
    """Trains a run and returns how the training ended; see ``endings.find_ending``.

    Returns None on a node that does not hold the lock, and if the training was copied from a shorter run.
    """
    say(job, shlex.join(command))
    # fairseq would train a finished model for one more update.
    completed = run_directory.completed_updates(job.folder / "checkpoints")
    sizes = endings.log_sizes(job.folder)
    logs = list(sizes)
    if completed < job.updates and endings.last_reason(logs) not in endings.FINAL:
        failure = None
        try:
            with show_training(job, log) as record:
                on_line = ReportedBatch(job, log.parse).before(record)
                run_command(command, log.path, on_line, **job.command_options)
        except CommandFailed as error:
            failure = error
        logs = _written_logs(job.folder, sizes)
        if failure and endings.last_reason(logs) != endings.DIVERGED:
            raise failure
    if job.lock is None:  # the node that holds the lock records the ending
        return None
    if not logs:  # the training was copied
        return None
    reached = max(completed, _logged_updates(logs, log))
    return endings.find_ending(logs, command, reached, job.updates)


def _written_logs(folder, sizes):
    """Returns the logs in a run's folder that were written since they had ``sizes``, {log: bytes}."""
    return [path for path, size in endings.log_sizes(folder).items() if size != sizes.get(path)]


def _logged_updates(logs: Sequence[Path], log: Log) -> int:
    """Returns the largest number of updates that the last training logged on any node.

    All logs are read because only the node of rank 0 logs metrics, and another node may hold the lock.
    """
    reached = 0
    for path in logs:
        for line in endings.last_training(path):
            entry = log.parse(line)
            if entry:
                reached = max(reached, entry_updates(entry))
    return reached


def record_training(job: Job, ended: dict | None) -> None:
    """Records the speed of a training and, if it ended early, how it ended."""
    if ended:
        write_json(job.folder / "evaluation.json", {**job.record, "ended": ended})
    speed = training_speed(job.folder)
    if speed:
        record_evaluation(job.folder, "training", speed)


def join_training(job: Job) -> None:
    """Joins the training of the node that holds the lock; this node writes only its own log."""
    trials = job.trials()
    unfinished = [trial for trial in trials if trial.state != State.FINISHED]
    for trained in unfinished if trials else [job]:
        name = f"train-{socket.gethostname()}-{os.getpid()}.log"
        log = Log(trained.folder, name, run_directory.completed_updates(trained.folder / "checkpoints"))
        train(trained, resumed_command(trained), log)
        while is_locked(trained.folder):  # the other node joins the next training after this run's evaluation
            time.sleep(POLL_SECONDS)
