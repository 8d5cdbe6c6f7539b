"""Show the results of a paper's table, or of all runs of an experiment.

Published numbers are from configs/paper and labelled "paper". All other numbers are from the runs below the
results folder, finished or not.

examples:
  lrpe results results --table tmlr_table2 --scale mini
  lrpe results results --experiment lm/mini --format csv
"""

import sys
from argparse import ArgumentParser, Namespace

from fairseq_lrpe.cli.train import parse
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, image_path, new_parser

SCALES = ("full", "mini")


def main(arguments: list[str] | None = None) -> None:
    args, overrides = parse(parser(), arguments)
    with exit_on_error("results"):
        if args.table:
            show_table(args, overrides)
            return
        if args.scale or args.plot_columns or overrides:
            option = "--scale" if args.scale else overrides[0] if overrides else "--plot-columns"
            raise ValueError(f"{option} cannot be combined with --experiment, which shows every run")
        show_experiment(args)


def parser() -> ArgumentParser:
    usage = "RESULTS (--table TABLE | --experiment EXPERIMENT) [options] [KEY=VALUE ...]"
    parser = new_parser("lrpe results", __doc__, usage)
    parser.add_argument("results", type=abs_path, help="folder to which the runs were written")
    shown = parser.add_mutually_exclusive_group(required=True)
    shown.add_argument("--table", help="table to show, a file in configs/tables without .yaml")
    shown.add_argument("--experiment", help="show all runs of this experiment, such as lm/mini")
    text = "configuration of the table: the paper's (full, default) or a small one (mini)"
    parser.add_argument("--scale", choices=SCALES, help=text)
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
    from fairseq_lrpe.experiments.spec.table import Table

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
