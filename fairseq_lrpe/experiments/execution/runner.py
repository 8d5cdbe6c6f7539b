"""Execution of a run: training or choice among trials, evaluation, and recording of the results.

A run's folder contains run.json (settings, versions), command.sh, train.log and log.jsonl, checkpoints,
eval-<name>.log and evaluation.json: {"evaluations": {name: {"settings", metric: value, ..}}, "finished"}.
If the run chooses among trials, this file also has {"chosen", "checkpoint", "tried": {trial: evaluations}}.
If the training ended before its last update, this file has {"ended"}; see ``endings``.
"""

import math
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import endings, run_directory
from fairseq_lrpe.experiments.execution.evaluators import Evaluator, build_evaluator
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.launch import train_command
from fairseq_lrpe.experiments.execution.progress import say
from fairseq_lrpe.experiments.execution.run_directory import InUse, locked
from fairseq_lrpe.experiments.execution.run_extension import used_extension
from fairseq_lrpe.experiments.execution.run_files import read_settings, record_evaluation, write_json
from fairseq_lrpe.experiments.execution.run_settings import data_sizes, initial_checkpoint, run_settings
from fairseq_lrpe.experiments.execution.training import (
    join_training,
    prepare_training,
    record_training,
    train,
)
from fairseq_lrpe.experiments.execution.trials import Tried
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import display_path, file_exists, output_folder
from fairseq_lrpe.utils.subprocesses import CommandRejected

LOCK_TIMEOUT = 5  # seconds to wait until the subprocesses of a killed process have ended


def execute_run(job: Job) -> None:
    """Executes the missing parts of a run, or joins a training that another node has started.

    If fairseq rejects the arguments of a new run, the run's folder is removed.
    """
    is_new = not job.folder.exists()
    timeout = LOCK_TIMEOUT if job.nodes == 1 else 0
    with output_folder(job.folder):
        try:
            with locked(job.folder, timeout) as job.lock:
                settings = run_settings(job)
                check_settings(job, settings)
                if job.state == State.FINISHED:
                    say(job, f"already {endings.describe(job.record, settings['updates'])}: {job.folder}")
                else:
                    produce_model(job, settings)
                    record_evaluations(job, settings["updates"])
        except InUse:
            if job.nodes == 1:
                raise
            join_training(job)
        except CommandRejected:
            if is_new and not any(job.folder.rglob("*.pt")):
                shutil.rmtree(job.folder)
            raise
        finally:
            job.lock = None


def check_settings(job: Job, settings: dict) -> None:
    """Raises UserError if the folder of a run, or of one of its trials, has a run with other settings."""
    for checked in (job, *job.trials()):
        changed = {"config": checked.recorded_config, "changes": dict(checked.run.changes)}
        run_directory.check_settings(checked.folder, settings | changed)


def produce_model(job: Job, settings: dict) -> None:
    """Trains the model of a run, or chooses it among the run's trials.

    Args:
        job: the run.
        settings: the content of run.json.
    """
    if job.trials():
        choose_model(job, settings)
    elif not job.kind.trains:
        write_json(job.folder / "run.json", settings)
    elif not job.is_trained:
        command, log = prepare_training(job, settings)
        ended = train(job, command, log)
        record_training(job, ended)


def choose_model(job: Job, settings: dict) -> None:
    """Executes the trials of a run and makes the best trial the result of the run."""
    candidates = job.trials()
    settings["updates"] = sum(trial.updates for trial in candidates)
    write_json(job.folder / "run.json", settings)
    tried = Tried(job)
    for trial in candidates:
        if trial.state == State.FINISHED:
            say(job, f"already finished: {trial.folder}")
        else:
            execute_run(trial)
        tried.add(trial)
    best = tried.best()
    outcome = tried.outcome(best)
    if endings.is_diverged(best.record):  # then, all trials diverged
        write_json(job.folder / "evaluation.json", outcome)
        return
    if not best.checkpoint.exists():  # it was removed in favor of a trial that is no longer listed
        (best.folder / "evaluation.json").unlink()
        execute_run(best)
    tried.record_best(best, outcome)
    say(job, f"best of {len(candidates)}: {job.trial_name(best)}")


def record_evaluations(job: Job, updates: int) -> None:
    """Records the missing evaluations of a trained run, and the time at which it is finished.

    Args:
        job: the run to evaluate.
        updates: the number of updates of its training, or of all its trials.
    """
    for name in evaluate(job):
        say(job, f"{job.run}: evaluated {name}")
    record = {"evaluations": {}, **job.record, "finished": run_directory.timestamp()}
    write_json(job.folder / "evaluation.json", record)
    for name, measured in record["evaluations"].items():
        text = job.kind.describe(job.cfg, measured)
        if text:
            say(job, f"{name}: {text}")
    say(job, f"{endings.describe(record, updates)}: {job.folder}")


def evaluate(job: Job, evaluator: Evaluator | None = None) -> Iterator[str]:
    """Executes the evaluations that the record of the run lacks; yields the name of each after recording it.

    Args:
        job: the run to evaluate.
        evaluator: the evaluator of the job; by default, a new one.
    """
    names = job.missing_evaluations(job.record)
    for name, measured in measurements(job, names, evaluator or build_evaluator(job)):
        record_evaluation(job.folder, name, {"settings": job.evaluation_settings(name), **measured})
        yield name


def measurements(job: Job, names: list[str], evaluator: Evaluator) -> Iterator[tuple[str, dict]]:
    """Yields (name, {metric: value}) of the evaluations ``names``; a run that diverged has the value NaN."""
    if endings.is_diverged(job.record):
        # The other metrics count as NaN, too; see RunRecord.value.
        metric = next(iter(job.kind.metrics))
        yield from ((name, {metric: math.nan}) for name in names)
        return
    if names and job.kind.trains and not job.checkpoint.exists():
        existing = ", ".join(sorted(path.name for path in job.folder.glob("checkpoints/*.pt")))
        remedy = f"set evaluate.checkpoint= to one of {existing}" if existing else "remove the run's folder"
        raise UserError(f"{job.checkpoint} does not exist: {remedy}")
    yield from evaluator.evaluate_all(names)


def check(job: Job) -> None:
    """Raises UserError for mistakes that would otherwise be noticed only during or after training."""
    for trial in job.trials():
        check(trial)
        if not job.kind.evaluations(job.cfg):
            example = "evaluations.x={split: valid}"
            raise UserError(f"{job.run} has no evaluation to compare its trials: add one, such as {example}")
    check_start(job)
    data_sizes(job.kind, job.cfg)
    if job.kind.trains:
        train_command(job)
        return
    job.kind.flags(job.run, job.cfg, job.starts_from)
    if job.extra_flags:
        flag = job.extra_flags[0].lstrip("-").replace("-", "_")
        wrong = f"the kind {job.cfg.kind} does not run fairseq-train"
        raise UserError(f"{wrong}: use train.{flag}=VALUE instead of flags after --")


def check_start(job: Job) -> None:
    """Raises UserError if the checkpoint or the run from which a job starts cannot be used."""
    start = job.experiment.starts_from(job.run)
    if isinstance(start, Path) and not file_exists(start):
        remedy = "pass a checkpoint or an experiment"
        raise UserError(f"starts_from: {start} does not exist and is no experiment: {remedy}")
    if not isinstance(start, Run):
        return
    if not job.starts_from.is_file():
        command = shlex.join(train_words(start, job.results))
        raise UserError(f"{job.run} starts from {start}, which is not trained: `{command}` trains it")
    if endings.is_diverged(job.start_job(start).record):
        raise UserError(
            f"{job.run} starts from {start}, whose training diverged: change the settings of "
            f"{start.experiment}, or set starts_from to another checkpoint"
        )


def train_words(run: Run, results: Path) -> list[str]:
    """Returns the words of the command ``lrpe train`` that trains a run."""
    words = ["lrpe", "train", run.experiment, run.method, "--attention", run.attention]
    words += ["--seeds", str(run.seed), "--results", str(display_path(results))]
    return words + [f"{key}={value}" for key, value in run.changes]


def check_finished(job: Job) -> None:
    """Raises UserError if a finished run's files are damaged, or its data or settings are not the job's."""
    now = {
        **read_settings(job.folder),
        **asdict(job.run),
        "changes": dict(job.run.changes),
        "config": job.recorded_config,
        **used_extension(job.run.method, job.train_flags),
        "flags": job.extra_flags,
        "data": data_sizes(job.kind, job.cfg),
    }
    if job.precision is not None:
        now["precision"] = job.precision
    if job.starts_from is None or job.starts_from.is_file():  # it may have been removed
        now["starts_from"] = initial_checkpoint(job)
    run_directory.check_settings(job.folder, now)
    recorded = read_settings(job.folder)
    if recorded["config"].get("starts_from") != job.start_name:  # earlier versions have other names for it
        recorded["config"]["starts_from"] = job.start_name
        write_json(job.folder / "run.json", recorded)
