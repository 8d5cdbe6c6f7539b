"""Show the results of a paper's table or of all runs of an experiment, or record and check finished runs.

Published numbers are from configs/paper and labelled "paper". All other numbers are from the runs below the
results folder, finished or not, or from a folder of recorded results, such as docs/results.

--check compares the finished runs with the records of the same runs. On the same kind of machine, with the
same versions of torch and of this package, numbers must be equal to the last digit. Otherwise, they may
differ by four sample standard deviations over the recorded seeds or by 5%, whichever is larger. Speeds and
runs on other data are not compared. The exit code is 1 if a number is off.

examples:
  lrpe results results --table tmlr_table2 --scale mini
  lrpe results results --experiment lm/mini --format csv
  lrpe results results --record docs/results
  lrpe results results --check
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from fairseq_lrpe.cli.train import parse
from fairseq_lrpe.experiments.spec.table import SCALE_HELP, SCALES, Table
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, image_path, new_parser
from fairseq_lrpe.utils.files import REPOSITORY, display_path, write_atomic

RECORDED = REPOSITORY / "docs/results"


def main(arguments: list[str] | None = None) -> None:
    args, overrides = parse(parser(), arguments)
    with exit_on_error("results"):
        if args.table:
            show_table(args, overrides)
            return
        if args.scale or args.plot_columns or overrides:
            option = "--scale" if args.scale else overrides[0] if overrides else "--plot-columns"
            names = ("experiment", "record", "record_weights", "check", "write_docs")
            used = next(name for name in names if getattr(args, name)).replace("_", "-")
            raise ValueError(f"{option} cannot be combined with --{used}, which uses every run")
        if args.experiment:
            show_experiment(args)
            return
        if args.format or args.plot:
            raise ValueError(f"{'--format' if args.format else '--plot'} needs --table or --experiment")
        if args.record:
            record(args.results, args.record)
        elif args.record_weights:
            record_weights(args.results, args.record_weights)
        elif args.check:
            check(args.results, args.check)
        else:
            write_docs(args.results)


def parser() -> ArgumentParser:
    usage = "RESULTS (--table TABLE | --experiment EXPERIMENT | --record FOLDER | --record-weights FOLDER | "
    usage += "--check [FOLDER] | --write-docs) [options] [KEY=VALUE ...]"
    parser = new_parser("lrpe results", __doc__, usage)
    text = "folder to which the runs were written, or folder of recorded results"
    parser.add_argument("results", type=abs_path, metavar="RESULTS", help=text)
    shown = parser.add_mutually_exclusive_group(required=True)
    shown.add_argument("--table", help="table to show, a file in configs/tables without .yaml")
    shown.add_argument("--experiment", help="show all runs of this experiment, such as lm/mini")
    text = "write the numbers and curves of the finished runs to CSV files in this folder"
    shown.add_argument("--record", type=abs_path, metavar="FOLDER", help=text)
    text = "write the attention weights of the models of lm/extrapolation_mini to this folder"
    shown.add_argument("--record-weights", type=abs_path, metavar="FOLDER", help=text)
    text = "compare the finished runs with the recorded results in this folder (default: docs/results)"
    shown.add_argument("--check", type=abs_path, nargs="?", const=RECORDED, metavar="FOLDER", help=text)
    text = "write all tables to RESULTS.md; RESULTS is a folder of recorded results, such as docs/results"
    shown.add_argument("--write-docs", action="store_true", help=text)
    parser.add_argument("--scale", choices=SCALES, help=SCALE_HELP)
    formats = ("markdown", "latex", "csv")
    text = "output format (default: a text table on a terminal, and Markdown otherwise)"
    parser.add_argument("--format", choices=formats, help=text)
    parser.add_argument("--plot", type=image_path, metavar="FILE.png", help="plot of the validation curves")
    text = "plot of the table's measured numbers, with one line per row over the columns"
    parser.add_argument("--plot-columns", type=image_path, metavar="FILE.png", help=text)
    return parser


def show_table(args: Namespace, overrides: list[str]) -> None:
    """Prints a table and plots its validation curves and columns if requested."""
    from fairseq_lrpe.experiments.reporting import plots, tables

    table = Table(args.table, args.scale or "full", overrides)
    summary = tables.collect(table, args.results)
    tables.show_table(table, summary, args.format)
    if args.plot:
        plots.plot_table(table, args.results, args.plot)
    if args.plot_columns:
        plots.plot_columns(plots.table_name(table), summary, args.plot_columns)
        print(f"{args.plot_columns} shows the measured numbers by column.", file=sys.stderr)


def show_experiment(args: Namespace) -> None:
    """Prints all runs of an experiment and plots their validation curves if requested."""
    from fairseq_lrpe.experiments.reporting import plots, tables
    from fairseq_lrpe.experiments.reporting.measurements import measurements

    records = tables.read_experiment_runs(args.experiment, args.results)
    tables.show_experiment(args.experiment, measurements(records), args.format)
    if args.plot:
        plots.plot_curves(args.experiment, plots.experiment_lines(records), args.plot)
        print(f"{args.plot} shows the validation curves.", file=sys.stderr)


def record(results: Path, folder: Path) -> None:
    """Records the finished runs and exits with code 1 if some of them were not recorded."""
    from fairseq_lrpe.experiments.reporting import recording

    count, refused = recording.record(results, folder)
    for message in refused:
        print(f"results: not recorded: {message}", file=sys.stderr)
    print(f"{display_path(folder)}: {count} run{'s' * (count != 1)} recorded")
    if refused:
        sys.exit(1)


def record_weights(results: Path, folder: Path) -> None:
    """Records the attention weights of trained models."""
    from fairseq_lrpe.experiments.reporting import recorded_weights

    count = recorded_weights.record_weights("lm/extrapolation_mini", results, folder)
    print(f"{display_path(folder)}: weights of {count} model{'s' * (count != 1)} recorded")


def check(results: Path, folder: Path) -> None:
    """Compares the finished runs with the recorded ones and exits with code 1 if a number is off."""
    from fairseq_lrpe.experiments.reporting import recording

    lines, is_as_recorded = recording.check(results, folder)
    print(*lines, sep="\n")
    if not is_as_recorded:
        sys.exit(1)


def write_docs(folder: Path) -> None:
    """Writes the page of a folder of recorded results."""
    from fairseq_lrpe.experiments.reporting import recorded_tables

    path = recorded_tables.page_path(folder)
    write_atomic(path, recorded_tables.page(folder))
    print(f"{display_path(path)} is up to date")
