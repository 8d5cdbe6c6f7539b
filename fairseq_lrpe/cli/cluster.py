"""The options of ``lrpe table`` and ``lrpe train`` that execute runs on a SLURM cluster."""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairseq_lrpe.experiments.execution import scheduler
from fairseq_lrpe.experiments.execution.run_directory import is_locked
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.utils.cli import min_int, print_wide, resumable


def add_flags(parser: ArgumentParser) -> None:
    """Adds --launcher and the options of SLURM."""
    group = parser.add_argument_group("cluster")
    text = "execute the runs on this machine (default), or submit each as a job of SLURM"
    group.add_argument("--launcher", choices=("local", "slurm"), default="local", help=text)
    text = "an option of sbatch, such as partition=gpu; may be repeated; configs/cluster.yaml has defaults"
    group.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "the number of jobs in the queue at a time; the rest is submitted by --wait or the next call"
    group.add_argument("--max-jobs", type=min_int(1), metavar="N", help=text)
    group.add_argument("--wait", action="store_true", help="wait until all submitted jobs have ended")
    instead = group.add_mutually_exclusive_group()
    text = "show which runs are finished, running, queued or failed, and submit nothing"
    instead.add_argument("--status", action="store_true", help=text)
    instead.add_argument("--cancel", action="store_true", help="cancel the jobs of these runs")


def is_requested(args: Namespace) -> bool:
    """Whether the arguments request SLURM or the status of runs; ValueError if they contradict each other."""
    requested = args.launcher == "slurm" or args.status or args.cancel
    for name in ("slurm", "max_jobs", "wait"):
        if getattr(args, name) and not requested:
            raise ValueError(f"--{name.replace('_', '-')} needs --launcher slurm")
    if args.nodes > 1 and not (requested or hasattr(args, "rendezvous")):
        raise ValueError("--nodes needs --launcher slurm")
    if args.dry_run and requested:
        raise ValueError("--dry-run cannot be combined with the options of a cluster")
    return requested


def main(args: Namespace, jobs: dict[Run, Job], flags: list[str], more: tuple | list = ()) -> list[str]:
    """Submits the runs, or shows or cancels their jobs; returns one message per failed run with --wait.

    Args:
        jobs: the runs, each after those it needs.
        flags: flags of ``lrpe train`` for the machine and the results folder.
        more: further arguments of fairseq-train.
    """
    from fairseq_lrpe.experiments.execution import slurm  # imports submitit, which takes long

    if args.status:
        print_status(jobs)
        return []
    if args.cancel:
        slurm.check_commands()
        queued = slurm.queue(jobs)
        slurm.cancel(job.id for job in queued.values())
        print(f"{len(queued)} jobs cancelled")
        return []
    ready, errors = scheduler.jobs_with_data(jobs, args.gpus, args.nodes)
    for message in errors:
        print(message, file=sys.stderr)
    gpus = None if getattr(args, "cpu", False) else args.gpus
    launcher = slurm.SlurmLauncher(args.slurm, args.nodes, gpus, args.max_jobs)
    launcher.sbatch_options()
    slurm.check_commands()
    flags = [*flags, *(["--", *more] if more else [])]
    arguments = {run: [*scheduler.train_arguments(job), *flags] for run, job in ready.items()}
    submitted, waiting = launcher.submit(ready, arguments, args.results)
    print(describe_submission(len(submitted), waiting, len(slurm.queue(ready))), flush=True)
    if not args.wait:
        return []
    with resumable("the submitted jobs continue; --status shows them, and --cancel cancels them"):
        return errors + wait(launcher, ready, arguments, args, submitted)


def describe_submission(submitted: int, waiting: int, queued: int) -> str:
    """Describes what was submitted, such as "3 jobs submitted, 5 in the queue"."""
    text = f"{submitted} jobs submitted, {queued} in the queue"
    if waiting:
        text += f"; {waiting} more wait for others to end: use --wait, or run the same command again"
    return text


def wait(launcher, jobs, arguments, args, submitted) -> list[str]:
    """Waits until no run has a job, submitting the waiting runs; returns one message per failed run."""
    from fairseq_lrpe.experiments.execution import slurm

    console, shown, tried = Console(highlight=False, soft_wrap=True), {}, set(submitted)
    while True:
        queued = unfinished_jobs(jobs)
        for run in dict.fromkeys([*shown, *queued]):
            state = str(queued[run]) if run in queued else state_of(jobs[run], jobs)
            if shown.get(run) != state:
                console.print(f"{run}: {state}")
            shown[run] = state
        failed = {run for run in tried - queued.keys() if not scheduler.is_complete(jobs[run])}
        more, waiting = launcher.submit(jobs, arguments, args.results, failed)
        tried |= {*more, *queued}
        if not queued and not more and not waiting:
            break
        time.sleep(slurm.POLL_SECONDS)
    unfinished = [run for run, job in jobs.items() if not scheduler.is_complete(job)]
    return [f"{run}: {state_of(jobs[run], jobs)}" for run in unfinished]


def unfinished_jobs(jobs: dict[Run, Job]) -> dict:
    """Returns {run: QueuedJob} of the queued and running jobs whose runs are not finished.

    After a crash of its controller, SLURM may hold the job of a finished run in the queue.
    """
    from fairseq_lrpe.experiments.execution import slurm

    return {run: job for run, job in slurm.queue(jobs).items() if not scheduler.is_complete(jobs[run])}


def state_of(job: Job, jobs: dict[Run, Job]) -> str:
    """Returns the state of one of ``jobs`` that is not in the queue, such as "finished"."""
    from fairseq_lrpe.experiments.execution import slurm

    if scheduler.is_complete(job):
        return "finished"
    if is_locked(job.folder):
        return "running"
    if (number := slurm.last_job(job.folder)) is None:
        return "not submitted"
    for run in job.experiment.needs(job.run):
        if run in jobs and not scheduler.is_complete(jobs[run]):
            return f"cancelled: it needs {run}, which is not finished"
    return f"failed (job {number}): {slurm.failure(job.folder)}"


def print_status(jobs: dict[Run, Job]) -> None:
    """Prints the state of each run and the number of runs in each state."""
    from fairseq_lrpe.experiments.execution import slurm

    queued = unfinished_jobs(jobs) if slurm.is_installed() else {}
    listing, counts = Table("run", "job", "state"), Counter()
    for run, job in jobs.items():
        state = str(queued[run]) if run in queued else state_of(job, jobs)
        number = queued[run].id if run in queued else slurm.last_job(job.folder) or "-"
        listing.add_row(str(run), number, Text(state, "red" if state.startswith("failed") else ""))
        counts[state.split(" (")[0].split(" on ")[0].split(":")[0]] += 1
    print_wide(listing)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
