"""The options of ``lrpe table`` and ``lrpe train`` that execute runs on a SLURM cluster."""

import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter

from rich.table import Table
from rich.text import Text

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import scheduler
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.utils.cli import print_wide, resumable
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import output_folder


def add_flags(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
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


def main(args: Namespace, jobs: dict[Run, Job]) -> list[str]:
    """Submits the runs, or shows or cancels their jobs; returns one message per failed run with --wait."""
    from fairseq_lrpe.experiments.execution import slurm  # imports submitit, which takes long

    if args.status:
        print_status(slurm.states(jobs))
    elif shutil.which("sbatch") is None:
        raise UserError("sbatch was not found: run this command on a login node of a SLURM cluster")
    elif args.cancel:
        if numbers := [number for number, _ in slurm.queue(jobs).values()]:
            slurm.slurm_command("scancel", *numbers)
        print(f"{len(numbers)} jobs cancelled")
    else:
        with output_folder(args.results):
            return submit(args, jobs)
    return []


def submit(args: Namespace, jobs: dict[Run, Job]) -> list[str]:
    """Submits the runs with data; with --wait, also those that wait for others, until no run has a job."""
    from fairseq_lrpe.experiments.execution import slurm

    jobs, errors = scheduler.jobs_with_data(jobs, args.gpus, args.nodes)
    for message in errors:
        print(message, file=sys.stderr)
    submitted, waiting = slurm.submit(jobs, args)
    later = f"; {waiting} more wait: use --wait, or run the same command again" if waiting else ""
    print(f"{len(submitted)} jobs submitted, {len(slurm.queue(jobs))} in the queue{later}", flush=True)
    tried = set(submitted)
    with resumable("the submitted jobs continue; --status shows them, and --cancel cancels them"):
        while args.wait:
            time.sleep(slurm.POLL_SECONDS)
            queued = slurm.queue(jobs)
            failed = {run for run in tried - queued.keys() if jobs[run].state != "finished"}
            submitted, waiting = slurm.submit(jobs, args, failed)
            tried |= {*submitted, *queued}
            if not (waiting or submitted or queued):
                ended = {run: state for run, (_, state) in slurm.states(jobs).items()}
                return errors + [f"{run}: {state}" for run, state in ended.items() if state != "finished"]
    return []


def print_status(states: dict[Run, tuple[str, str]]) -> None:
    listing, counts = Table("run", "job", "state"), Counter()
    for run, (number, state) in states.items():
        listing.add_row(str(run), number, Text(state, "red" if state.startswith("failed") else ""))
        counts[state.split(":")[0].split(" (")[0].split(" on ")[0]] += 1
    print_wide(listing)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
