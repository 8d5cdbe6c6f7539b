"""Run the experiments of a paper's table and show the results next to the published ones, or list all tables.

configs/tables/TABLE.yaml defines the runs. KEY=VALUE overrides a setting of all experiments of the table.
Finished runs are not repeated, and interrupted ones are resumed. For example:

  lrpe table tmlr_table2 --scale mini --jobs 2
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from rich.table import Table as RichTable
from rich.text import Text

from fairseq_lrpe.cli import cluster, train
from fairseq_lrpe.experiments.estimation.table import add_estimate_flags, estimated_launch, show_estimate
from fairseq_lrpe.experiments.execution import scheduler
from fairseq_lrpe.experiments.execution.launch import add_results_flag, machine_flags
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.spec.run import Run, finished_runs
from fairseq_lrpe.experiments.spec.table import SCALE_HELP, SCALES, Table, TableSpec, tables
from fairseq_lrpe.utils.cli import (
    error_message,
    exit_on_error,
    image_path,
    min_int,
    new_parser,
    print_wide,
    resumable,
)
from fairseq_lrpe.utils.files import output_folder


def main(arguments: list[str] | None = None) -> None:
    args, overrides = train.parse(make_parser(), arguments)
    with exit_on_error("table"):
        if args.table is None:
            print_tables(args.results)
            return
        table = Table(args.table, args.scale, overrides)
        runs = table.runs(args.only)
        if args.estimate:
            launch = estimated_launch(args)
            show_estimate([Job(table.experiment_of(run), run, args.results, launch) for run in runs], args.on)
            return
        jobs = {run: Job(table.experiment_of(run), run, args.results) for run in runs}
        if cluster.is_requested(args):
            with output_folder(args.results):
                errors = cluster.main(args, jobs, machine_flags(args))
            if args.wait:
                show(table, args, errors)
        else:
            args.gpus = scheduler.gpus_per_job(args.jobs, args.gpus, args.dry_run)
            flags = machine_flags(args)
            if args.dry_run:
                print_commands(jobs, flags)
                return
            with output_folder(args.results):
                errors = execute(jobs, scheduler.LocalLauncher(args.jobs, args.gpus), flags)
                show(table, args, errors)
    if errors:
        sys.exit("\n".join(["table: some runs are not finished:", *errors]))


def make_parser() -> ArgumentParser:
    parser = new_parser("lrpe table", __doc__, "[TABLE] [options] [KEY=VALUE ...]")
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a file in configs/tables, without .yaml")
    parser.add_argument("--scale", choices=SCALES, default="full", help=SCALE_HELP)
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="run only these methods")
    text = "number of runs executed in parallel (default: %(default)s)"
    parser.add_argument("--jobs", type=min_int(1), default=1, help=text)
    text = "number of GPUs of each run (default: an equal share; 0: train on the CPU)"
    parser.add_argument("--gpus", type=min_int(0), help=text)
    text = "number of nodes of each run, with --launcher slurm (default: %(default)s)"
    parser.add_argument("--nodes", type=min_int(1), default=1, help=text)
    cluster.add_flags(parser)
    add_results_flag(parser)
    parser.add_argument("--plot", type=image_path, metavar="FILE.png", help="plot of the validation curves")
    parser.add_argument("--dry-run", action="store_true", help="print the commands without running them")
    add_estimate_flags(parser)
    return parser


def execute(jobs: dict[Run, Job], launcher: scheduler.LocalLauncher, flags: list[str]) -> list[str]:
    """Executes the runs on this machine; returns a message for each run or experiment that failed."""
    jobs, errors = scheduler.jobs_with_data(jobs, launcher.gpus)
    for message in errors:
        print(f"table: {message}", file=sys.stderr)
    with resumable():
        return errors + scheduler.execute_runs(jobs, launcher, flags)


def show(table: Table, args: Namespace, errors: list[str]) -> None:
    """Prints the table, and plots the curves unless there were errors."""
    from fairseq_lrpe.experiments.reporting import plots  # imports pandas, which takes long
    from fairseq_lrpe.experiments.reporting import tables as reports

    reports.show_table(table, reports.collect(table, args.results))
    if args.plot and not errors:
        plots.plot_table(table, args.results, args.plot)


def print_commands(jobs: dict[Run, Job], flags: list[str]) -> None:
    """Prints each run's training command, or a comment if it depends on a checkpoint that does not exist."""
    for job in jobs.values():
        if job.trials():
            continue
        if job.starts_from and not job.starts_from.exists():
            job.experiment.check_options(job.run)
            print(f"# {job.run}: the command depends on {job.starts_from}, which does not exist yet")
        else:
            train.main([*scheduler.train_arguments(job), *flags, "--dry-run"])


def print_tables(results: Path) -> None:
    """Prints the title of each table and the number of its finished runs at each scale."""
    smaller = (f"finished at --scale {scale}" for scale in SCALES if scale != "full")
    listing, finished = RichTable("table", "title", "finished runs", *smaller), {}
    for key, changes in finished_runs(results):
        finished.setdefault(key, []).append(changes)

    def count(cells):
        """Returns the number of finished runs that belong to one of the cells; "-" if there are no cells."""
        matches = (
            (key, number)
            for key, wanted in cells
            for number, changes in enumerate(finished.get(key, ()))
            if all(changes.get(name, value) == value for name, value in wanted.items())
        )
        return str(len(set(matches))) if cells else "-"

    for name in tables():
        try:
            table = TableSpec(name)
            counts = (count(table.outline(scale)) for scale in SCALES)
            listing.add_row(name, Text(table.settings.title), *counts)
        except (ValueError, OmegaConfBaseException) as error:
            listing.add_row(name, Text(f"error: {error_message(error)}", "red"), *"-" * len(SCALES))
    print_wide(listing)
