"""Run the experiments of a paper's table and show the results next to the published ones, or list all tables.

configs/tables/TABLE.yaml defines the runs. KEY=VALUE overrides a setting of all experiments of the table that
have KEY, or of all if none has KEY. Finished runs are not repeated, and interrupted ones are resumed. For
example:

  lrpe table tmlr_table2 --scale mini --jobs 2
"""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace

from rich.table import Table as RichTable
from rich.text import Text

from fairseq_lrpe.cli import results, train
from fairseq_lrpe.experiments.definition.config_files import tables
from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.definition.table_settings import SCALE_HELP, SCALES
from fairseq_lrpe.experiments.definition.table_spec import TableSpec
from fairseq_lrpe.experiments.estimation.table import add_estimate_flags, show_estimate
from fairseq_lrpe.experiments.execution import scheduler, slurm
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.launch import add_machine_flags, choose_machine
from fairseq_lrpe.utils.cli import exit_on_error, image_path, min_int, new_parser, print_wide, resumable
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import output_folder


def main(arguments: list[str] | None = None) -> None:
    args, overrides = train.parse(make_parser(), arguments)
    errors = []
    with exit_on_error("table"):
        if args.table is None:
            print_tables()
            return
        table = results.selected_table(args, overrides)
        jobs = {run: Job(table.experiment_of(run), run, args.results) for run in table.runs(args.methods)}
        if args.estimate:
            show_estimate(jobs.values(), args)
        elif slurm.is_requested(args):
            errors = slurm.run_on_cluster(args, jobs)
            if args.wait:
                results.show_table(table, args)
        else:
            errors = execute_table(table, jobs, args)
    if errors:
        sys.exit("\n".join(["table: some runs are not finished:", *errors]))


def make_parser() -> ArgumentParser:
    parser = new_parser("lrpe table", __doc__, "[TABLE] [options] [KEY=VALUE ...]")
    text = "table to run, a file in configs/tables without .yaml (default: list all tables)"
    parser.add_argument("table", nargs="?", metavar="TABLE", help=text)
    parser.add_argument("--scale", choices=SCALES, default="full", help=SCALE_HELP)
    text = "execute only the runs of these methods and the runs that they need"
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help=text)
    results.add_seeds_flag(parser)
    text = "number of runs at a time (default: 1), or of jobs in SLURM's queue (default: all)"
    parser.add_argument("--jobs", type=min_int(1), help=text)
    add_machine_flags(parser)
    slurm.add_flags(parser)
    text = "write a plot of the validation curves to this file"
    parser.add_argument("--plot", type=image_path, metavar="FILE.png", help=text)
    add_estimate_flags(parser)
    parser.set_defaults(format=None, plot_columns=None, show_methods=None)  # as in `lrpe results`
    return parser


def execute_table(table: Table, jobs: dict[Run, Job], args: Namespace) -> list[str]:
    """Executes the runs on this machine, and shows the table if at least one run is finished.

    With --dry-run, the training commands are only printed.

    Returns:
        A message for each run that failed or cannot start, and for each experiment that is skipped.
    """
    count = args.jobs or 1
    machine = choose_machine(args, count)
    jobs = {run: replace(job, **machine) for run, job in jobs.items()}
    if args.dry_run:
        train.print_commands(job for job in jobs.values() if not job.trials())
        return []
    with output_folder(args.results):
        ready, errors = scheduler.jobs_with_data(jobs, machine["gpus"])
        for message in errors:
            print(f"table: {message}", file=sys.stderr)
        with resumable():
            gpus = 0 if machine["cpu"] else machine["gpus"]
            errors += scheduler.Scheduler(ready, count, gpus).execute_all()
        if any(job.state == State.FINISHED for job in jobs.values()):
            results.show_table(table, args)
    return errors


def print_tables() -> None:
    listing = RichTable("table", "scales", "title")
    for name in tables():
        try:
            spec = TableSpec(name)
            listing.add_row(name, ", ".join(spec.scales), Text(spec.settings.title))
        except UserError as error:
            listing.add_row(name, "", Text(f"error: {error}", "red"))
    print_wide(listing)
