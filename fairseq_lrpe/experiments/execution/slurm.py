"""Execution of runs on a SLURM cluster, with submitit.

Each run is one job. Its comment is the run's folder, so that squeue shows which runs are queued or running.
The nodes must share the file system of the results. RUN/slurm contains submitit's files and the jobs' output.
"""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from fairseq_lrpe import extensions
from fairseq_lrpe.experiments.definition import config_files
from fairseq_lrpe.experiments.definition.experiment import read_yaml
from fairseq_lrpe.experiments.definition.run import Run, as_value
from fairseq_lrpe.experiments.execution import scheduler
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.launch import choose_machine
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.execution.runner import check, execute_run
from fairseq_lrpe.experiments.execution.sbatch import (
    FOLDER,
    Executor,
    check_folder,
    check_option,
    check_programs,
    clean_environment,
)
from fairseq_lrpe.experiments.execution.slurm_queue import ended_status, print_status, queue
from fairseq_lrpe.utils.cli import exit_on_error, min_int, resumable
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, check_control_characters, file_exists, output_folder

DEFAULTS = {"time": "24:00:00", "signal": "USR2@120", "requeue": True, "kill-on-invalid-dep": "yes"}
"""Options of sbatch that configs/cluster.yaml and --slurm override; ``signal`` precedes the time limit."""
PYTHON = sys.executable  # the interpreter of the jobs, which the nodes have, too
CPUS_PER_GPU = 4  # for reading data
MAX_REQUEUES = 1000  # after time limits, before submitit gives up
POLL_SECONDS = 5
LOCK_TIMEOUT = 600  # seconds for another command that submits runs to the same results folder


def add_flags(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    text = "number of machines of each run (default: %(default)s)"
    group.add_argument("--nodes", type=min_int(1), default=1, help=text)
    text = "local executes the runs on this machine (default), slurm submits each as a job of SLURM"
    group.add_argument("--launcher", choices=("local", "slurm"), default="local", help=text)
    text = "an option of sbatch, such as partition=gpu; may be repeated and overrides configs/cluster.yaml"
    group.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help=text)
    group.add_argument("--wait", action="store_true", help="wait until all submitted jobs have ended")
    instead = group.add_mutually_exclusive_group()
    text = "show which runs are finished, running, queued or failed, and submit nothing"
    instead.add_argument("--status", action="store_true", help=text)
    instead.add_argument("--cancel", action="store_true", help="cancel the jobs of these runs")


def is_requested(args: Namespace) -> bool:
    return not args.dry_run and (args.launcher == "slurm" or args.status or args.cancel)


def run_on_cluster(args: Namespace, jobs: dict[Run, Job]) -> list[str]:
    """Submits the runs, shows their states or cancels their jobs, and returns error messages.

    The messages are about runs that cannot start (``jobs_with_data``) and, with --wait, about runs that are
    not finished after all jobs have ended.
    """
    if args.status:
        print_status(jobs)
        return []
    check_programs("sbatch", "srun", "squeue", "scancel")
    if args.cancel:
        cancel(jobs)
        return []
    if "%" in str(args.results):
        raise UserError(f"SLURM replaces % in the path {args.results}: use a results folder without it")
    precision = requested_precision(args)
    jobs = {run: replace(job, precision=precision) for run, job in jobs.items()}
    with output_folder(args.results):
        return submit_all(args, jobs)


def requested_precision(args: Namespace) -> str | None:
    """Returns the precision of training, or None if each node chooses it by its GPUs.

    A node chooses the precision without --precision, --gpus and --cpu.
    """
    if args.precision:
        return args.precision
    if args.cpu:
        return "fp32"
    return "fp16" if args.gpus else None


def cancel(jobs: dict[Run, Job]) -> None:
    numbers = [status.number for status in queue(jobs).values()]
    if numbers:
        with clean_environment():
            subprocess.run(["scancel", *numbers])
    print(f"{len(numbers)} jobs cancelled")


def submit_all(args: Namespace, jobs: dict[Run, Job]) -> list[str]:
    """Submits the runs that can start and returns error messages; with --wait, waits until the runs end."""
    ready, errors = scheduler.jobs_with_data(jobs, args.gpus, args.nodes)
    for message in errors:
        print(message, file=sys.stderr)
    submitted, waiting = submit(ready, args)
    later = f"; {waiting} more wait: use --wait, or run the same command again" if waiting else ""
    print(f"{len(submitted)} jobs submitted, {len(queue(ready))} in the queue{later}", flush=True)
    if args.wait:
        wait(ready, args, submitted, waiting)
        for run, job in ready.items():
            status = ended_status(job)
            if status.state != State.FINISHED:
                errors.append(f"{run}: {status.text}")
    return errors


def wait(jobs: dict[Run, Job], args: Namespace, tried: set[Run], waiting: int) -> None:
    """Waits until no job is in the queue, and submits the waiting runs when they can start.

    Args:
        jobs: all runs.
        args: the arguments of the command.
        tried: the runs that have been submitted; they have failed if they leave the queue unfinished.
        waiting: the number of runs that are not submitted yet.
    """
    with resumable("the submitted jobs continue; --status shows them, and --cancel cancels them"):
        while waiting or queue(jobs):
            time.sleep(POLL_SECONDS)
            queued = queue(jobs).keys()
            failed = {run for run in tried - queued if jobs[run].state != State.FINISHED}
            submitted, waiting = submit(jobs, args, failed)
            tried |= submitted | queued


@dataclass
class SlurmRun(submitit.helpers.Checkpointable):
    """Function that submitit pickles, and calls in a SLURM job to execute a run.

    submitit calls it on each node of the job, and again after the job was requeued.
    """

    job: Job
    args: Namespace
    variables: dict[str, str]  # set in the job, which may inherit none, as with --export=NONE

    def __call__(self) -> None:
        requeue = signal.getsignal(signal.SIGUSR2)
        try:
            with exit_on_error("train"):
                os.environ.update(self.variables)
                extensions.load()
                job = replace(self.job, **choose_machine(self.args_on_node()))
                check(job)
                execute_run(job)
        except SystemExit as end:
            if end.code == 128 + signal.SIGUSR2:  # the training has saved a checkpoint
                requeue(signal.SIGUSR2, None)
            raise

    def args_on_node(self) -> Namespace:
        args = Namespace(**vars(self.args))
        if args.nodes > 1:  # each job has its own port, because two jobs may share the first node
            port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
            args.rendezvous = f"{os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{port}"
        return args


def own_files() -> dict[str, str]:
    """Returns the environment variables that name the user's modules and configs by absolute paths."""
    return {**extensions.variables(), **config_files.variables()}


def sbatch_options(words: Iterable[str], gpus: int | None) -> dict[str, object]:
    """Returns {option of sbatch: value}: defaults, overridden by configs/cluster.yaml and by the command.

    Args:
        words: the values KEY=VALUE of --slurm.
        gpus: the number of GPUs per node, or None.
    """
    path = REPOSITORY / "configs/cluster.yaml"
    configured = read_yaml(path) if file_exists(path) else {}
    options = {}
    for key, value in {**DEFAULTS, **configured, **requested_options(words)}.items():
        key = str(key).replace("_", "-")
        check_option(key, value)
        options[key] = value
    if gpus:
        options["gpus-per-node"] = gpus
    if not any(key.startswith("cpus-per") for key in options):
        options["cpus-per-task"] = max(1, CPUS_PER_GPU * (gpus or 0))
    return {key: value for key, value in options.items() if value is not False}


def requested_options(words: Iterable[str]) -> dict[str, object]:
    """Returns {option of sbatch: value} for ``words``, the values KEY=VALUE of --slurm."""
    options = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise UserError(f"--slurm {word}: must be KEY=VALUE, such as partition=gpu")
        options[key] = as_value(value) if value in ("true", "false") else value
    return options


def submit(jobs: dict[Run, Job], args: Namespace, failed: Iterable[Run] = ()) -> tuple[set[Run], int]:
    """Submits the runs that are neither finished nor in use nor in the queue.

    A run starts after the runs that it needs. Runs in ``failed`` and the runs that need them are not
    submitted.

    Returns:
        The submitted runs, and the number of runs that wait for others or, with --jobs, for a shorter queue.
    """
    submitted = set()
    waiting = 0
    failed = set(failed)
    with locked(args.results, LOCK_TIMEOUT):
        numbers = {run: status.number for run, status in queue(jobs).items()}
        for run, number in numbers.items():
            complete_submission(jobs[run], number)
        for run, job in jobs.items():
            if run in numbers or run in failed or job.state in (State.FINISHED, State.RUNNING):
                continue
            needs = [needed for needed in job.experiment.needs(run) if needed in jobs]
            queued = [needed for needed in needs if needed in numbers]
            missing = [x for x in needs if x not in numbers and jobs[x].state != State.FINISHED]
            is_full = len(numbers) >= (args.jobs or len(jobs))
            if not failed.isdisjoint(missing):
                failed.add(run)
            elif missing or is_full:
                waiting += 1
            else:
                numbers[run] = submit_job(job, args, [numbers[needed] for needed in queued])
                submitted.add(run)
    return submitted, waiting


def complete_submission(job: Job, number: str) -> None:
    """Gives submitit's file of the job ``number`` its final name, if submitit was killed before it did so."""
    path = job.folder / FOLDER / f"{number}_submitted.pkl"
    if path.exists():
        return
    for unnamed in path.parent.glob("*.pkl"):
        if "_" not in unnamed.name:  # the name is then not that of an earlier job
            unnamed.rename(path)


def submit_job(job: Job, args: Namespace, after: list[str]) -> str:
    python = shlex.quote(PYTHON)
    check_folder(job.folder)
    check_control_characters(PYTHON, "the path of Python")
    executor = Executor(job.folder / FOLDER, max_num_timeout=MAX_REQUEUES, python=python)
    options = sbatch_options(args.slurm, None if args.cpu else args.gpus) | {"comment": str(job.folder)}
    if after:
        options["dependency"] = f"afterok:{':'.join(after)}"
    executor.update_parameters(
        job_name=f"lrpe {job.run}", nodes=args.nodes, ntasks_per_node=1, additional_parameters=options
    )
    try:
        # submitit prints what it also raises
        with clean_environment(), redirect_stderr(io.StringIO()):
            return executor.submit(SlurmRun(job, args, own_files())).job_id
    except (FailedJobError, FailedSubmissionError) as error:
        lines = re.findall(r"sbatch: (?:error: )?(.+)", str(error)) or str(error).splitlines()[-1:]
        raise UserError(f"sbatch failed for {job.run}: {lines[-1]}") from None
