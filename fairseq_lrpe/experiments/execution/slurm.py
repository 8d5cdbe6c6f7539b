"""Execution of runs on a SLURM cluster, with submitit.

Each run is one job, whose comment is the run's folder, so squeue shows which runs are queued or running. The
nodes must share the file system of the results. RUN/slurm has submitit's files and the output of the jobs.
"""

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace

import submitit
from rich.table import Table
from rich.text import Text
from submitit.core.utils import FailedJobError, FailedSubmissionError

from fairseq_lrpe.experiments.definition.experiment import read_yaml
from fairseq_lrpe.experiments.definition.run import Run, as_value
from fairseq_lrpe.experiments.execution import scheduler
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.launch import choose_machine
from fairseq_lrpe.experiments.execution.run_directory import locked
from fairseq_lrpe.experiments.execution.runner import check, execute_run
from fairseq_lrpe.experiments.execution.sbatch import (
    Executor,
    check_folder,
    check_option,
    check_programs,
    clean_environment,
)
from fairseq_lrpe.utils.cli import exit_on_error, min_int, print_wide, resumable
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, check_control_characters, file_exists, output_folder

FOLDER = "slurm"  # in a run's folder, with submitit's files
DEFAULTS = {"time": "24:00:00", "signal": "USR2@120", "requeue": True, "kill-on-invalid-dep": "yes"}
"""Options of sbatch that configs/cluster.yaml and --slurm override. ``signal`` precedes the time limit."""
PYTHON = sys.executable  # the interpreter of the jobs, which the nodes have, too
CPUS_PER_GPU = 4  # for reading data
MAX_REQUEUES = 1000  # after time limits, before submitit gives up
RETRIES, POLL_SECONDS = 60, 5  # slurmctld may restart
LOCK_TIMEOUT = 600  # seconds for another command that submits runs to the same results folder


def add_flags(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    text = "number of machines of each run (default: %(default)s)"
    group.add_argument("--nodes", type=min_int(1), default=1, help=text)
    text = "execute the runs on this machine (default), or submit each as a job of SLURM"
    group.add_argument("--launcher", choices=("local", "slurm"), default="local", help=text)
    text = "an option of sbatch, such as partition=gpu; may be repeated; configs/cluster.yaml has defaults"
    group.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help=text)
    group.add_argument("--wait", action="store_true", help="wait until all submitted jobs have ended")
    instead = group.add_mutually_exclusive_group()
    text = "show which runs are finished, running, queued or failed, and submit nothing"
    instead.add_argument("--status", action="store_true", help=text)
    instead.add_argument("--cancel", action="store_true", help="cancel the jobs of these runs")


def is_requested(args: Namespace) -> bool:
    return not args.dry_run and (args.launcher == "slurm" or args.status or args.cancel)


def run_on_cluster(args: Namespace, jobs: dict[Run, Job]) -> list[str]:
    """Submits the runs, or shows their states, or cancels their jobs, and returns error messages.

    The messages are about runs that cannot start (``jobs_with_data``) and, with --wait, about runs that are
    not finished after all jobs have ended.
    """
    if args.status:
        print_status(jobs)
        return []
    check_programs("sbatch", "srun", "squeue", "scancel")
    if args.cancel:
        if numbers := [number for number, _ in queue(jobs).values()]:
            with clean_environment():
                subprocess.run(["scancel", *numbers])
        print(f"{len(numbers)} jobs cancelled")
        return []
    # Without --gpus and --cpu, the precision depends on the GPUs of the node.
    precision = args.precision or ("fp32" if args.cpu else "fp16" if args.gpus else None)
    jobs = {run: replace(job, precision=precision) for run, job in jobs.items()}
    if "%" in str(args.results):
        raise UserError(f"SLURM replaces % in the path {args.results}: use a results folder without it")
    with output_folder(args.results):
        jobs, errors = scheduler.jobs_with_data(jobs, args.gpus, args.nodes)
        for message in errors:
            print(message, file=sys.stderr)
        submitted, waiting = submit(jobs, args)
        later = f"; {waiting} more wait: use --wait, or run the same command again" if waiting else ""
        print(f"{len(submitted)} jobs submitted, {len(queue(jobs))} in the queue{later}", flush=True)
        if args.wait:
            wait(jobs, args, submitted, waiting)
            ended = {run: ended_state(job)[1] for run, job in jobs.items()}
            errors += [f"{run}: {state}" for run, state in ended.items() if state != "finished"]
    return errors


def wait(jobs: dict[Run, Job], args: Namespace, tried: set[Run], waiting: int) -> None:
    with resumable("the submitted jobs continue; --status shows them, and --cancel cancels them"):
        while waiting or queue(jobs):
            time.sleep(POLL_SECONDS)
            queued = queue(jobs).keys()
            failed = {run for run in tried - queued if jobs[run].state != "finished"}
            submitted, waiting = submit(jobs, args, failed)
            tried |= submitted | queued


@dataclass
class SlurmRun(submitit.helpers.Checkpointable):
    """Executes a run in a SLURM job: on each of its nodes, and again after a requeue. submitit pickles it."""

    job: Job
    args: Namespace

    def __call__(self) -> None:
        requeue, args = signal.getsignal(signal.SIGUSR2), Namespace(**vars(self.args))
        if args.nodes > 1:  # each job has its own port, because two jobs may share the first node
            port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
            args.rendezvous = f"{os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{port}"
        try:
            with exit_on_error("train"):
                job = replace(self.job, **choose_machine(args))
                check(job)
                execute_run(job)
        except SystemExit as end:
            if end.code == 128 + signal.SIGUSR2:  # the training has saved a checkpoint
                requeue(signal.SIGUSR2, None)
            raise


def sbatch_options(given: Iterable[str], gpus: int | None) -> dict[str, object]:
    """Returns sbatch's options: defaults, overridden by configs/cluster.yaml, then ``given`` and ``gpus``."""
    path = REPOSITORY / "configs/cluster.yaml"
    found = {**DEFAULTS, **(read_yaml(path) if file_exists(path) else {})}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UserError(f"--slurm {text}: must be KEY=VALUE, such as partition=gpu")
        found[key] = as_value(value) if value in ("true", "false") else value
    found = {str(key).replace("_", "-"): value for key, value in found.items()}
    for key, value in found.items():
        check_option(key, value)
    if gpus:
        found["gpus-per-node"] = gpus
    if not any(key.startswith("cpus-per") for key in found):
        found["cpus-per-task"] = max(1, CPUS_PER_GPU * (gpus or 0))
    return {key: value for key, value in found.items() if value is not False}


def submit(jobs: dict[Run, Job], args: Namespace, failed: Iterable[Run] = ()) -> tuple[set[Run], int]:
    """Submits the runs that are neither finished, in use nor in the queue, each after those it needs.

    Runs in ``failed`` and those that need them are not submitted. Returns the submitted runs, and how many
    wait for others or, with --jobs, for a shorter queue.
    """
    submitted, waiting, failed = set(), 0, set(failed)
    with locked(args.results, LOCK_TIMEOUT):
        queued = {run: number for run, (number, _) in queue(jobs).items()}
        for run, number in queued.items():
            complete_submission(jobs[run], number)
        for run, job in jobs.items():
            if run in queued or run in failed or job.state in ("finished", "in use"):
                continue
            needs = [other for other in job.experiment.needs(run) if other in jobs]
            missing = {other for other in needs if other not in queued and jobs[other].state != "finished"}
            if missing & failed:
                failed.add(run)
            elif missing or len(queued) >= (args.jobs or len(jobs)):
                waiting += 1
            else:
                queued[run] = submit_job(job, args, [queued[other] for other in needs if other in queued])
                submitted.add(run)
    return submitted, waiting


def complete_submission(job: Job, number: str) -> None:
    """Gives submitit's file of the job ``number`` its final name, if submitit was killed before."""
    path = job.folder / FOLDER / f"{number}_submitted.pkl"
    for unnamed in path.parent.glob("*.pkl") if not path.exists() else ():
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
            return executor.submit(SlurmRun(job, args)).job_id
    except (FailedJobError, FailedSubmissionError) as error:
        lines = re.findall(r"sbatch: (?:error: )?(.+)", str(error)) or str(error).splitlines()[-1:]
        raise UserError(f"sbatch failed for {job.run}: {lines[-1]}") from None


def squeue() -> list[str]:
    command = ["squeue", f"--user={os.getuid()}", "--noheader", "--format=%i|%T|%N|%r|%k"]
    for _ in range(RETRIES):
        with clean_environment():
            done = subprocess.run(command, capture_output=True, text=True)
        if not done.returncode:
            return done.stdout.splitlines()
        time.sleep(POLL_SECONDS)
    raise UserError(f"squeue failed: {done.stderr.strip()}")


def queue(jobs: dict[Run, Job]) -> dict[Run, tuple[str, str]]:
    """Returns {run: (id, state)} of the unfinished runs with a pending or running job."""
    real = os.path.realpath  # another command may have used another path of the results folder
    runs, found = {real(job.folder): run for run, job in jobs.items()}, {}
    for line in squeue():
        number, state, node, reason, comment = line.split("|", 4)
        if (run := runs.get(real(comment))) and jobs[run].state != "finished":
            state = f"queued ({reason})" if state == "PENDING" else f"{state.lower()} on {node}"
            found[run] = number, state
    return found


def ended_state(job: Job) -> tuple[str, str]:
    """Returns (job id, state) of a run that is not queued; if it failed, with the last line of its log."""
    folder, state = job.folder / FOLDER, job.state
    number = max((int(path.name.split("_")[0]) for path in folder.glob("*_submitted.pkl")), default="-")
    if state in ("finished", "in use"):
        return str(number), "running" if state == "in use" else state
    if state == "damaged":
        return str(number), f"failed: {job.folder / 'evaluation.json'} is damaged: restore or remove it"
    state = "not submitted" if number == "-" else "failed: cancelled before it started"
    logs = [*job.folder.glob("*.log"), *folder.glob(f"{number}_*_log.*")]
    for path in sorted(logs, key=lambda path: path.stat().st_mtime):
        for line in path.read_text("utf-8", "replace").splitlines():
            if line.strip() and not line.startswith(("srun: ", "submitit ")):
                state = f"failed: {line} ({path})"
    return str(number), state


def print_status(jobs: dict[Run, Job]) -> None:
    queued = queue(jobs) if shutil.which("squeue") else {}
    listing, counts = Table("run", "job", "state"), Counter()
    for run, job in jobs.items():
        number, state = queued.get(run) or ended_state(job)
        listing.add_row(str(run), number, Text(state, "red" if state.startswith("failed") else ""))
        counts[state.split(":")[0].split(" (")[0].split(" on ")[0]] += 1
    print_wide(listing)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
