"""Show the results of a paper's table or of all runs of an experiment, or record or check finished runs.

Published numbers are from configs/paper and labeled "paper". All other numbers are from the runs below the
results folder, finished or not, or from a folder of recorded results, such as docs/results.

--check compares the finished runs with the records of the same runs. On the same kind of machine, with the
same versions of torch and of this package, numbers must be equal to the last digit. Otherwise, they may
differ by four sample standard deviations over the recorded seeds or by 5%, whichever is larger. Speeds, runs
without a record and runs on other data are not compared. The exit code is 1 if a number is off, and with
--record if a finished run was not recorded.

--validate prints a line for each problem of recorded results, such as those of a contribution: settings other
than those in configs, versions, data or hardware that are not named, numbers that cannot be measured or are
missing, and numbers or curves without their run. With --results BASE, records in BASE must be unchanged, and
only the runs that BASE lacks are new: these must name a commit without changes and the details of their
machine, which some records of earlier versions lack. The exit code is 1 if there is a problem.

examples:
  lrpe results --table tmlr_table2 --scale mini
  lrpe results --experiment lm/mini --format csv
  lrpe results --results docs/results --table tmlr_table2 --scale mini
  lrpe results --check
  lrpe results --validate docs/results --results ../main/docs/results
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from fairseq_lrpe.cli.train import parse
from fairseq_lrpe.experiments.definition.table import Table
from fairseq_lrpe.experiments.definition.table_settings import SCALE_HELP, SCALES
from fairseq_lrpe.experiments.execution.launch import add_results_flag
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, image_path, min_int, new_parser
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, display_path

RECORDED = REPOSITORY / "docs/results"
FOLDER_ACTIONS = {
    "record": "add the finished runs to the recorded results in FOLDER",
    "record-weights": "write the attention weights of the models of lm/extrapolation_mini to FOLDER",
    "check": "compare the finished runs with the recorded results in FOLDER",
    "validate": "check the records in FOLDER, and that those in --results BASE are unchanged",
    "write-docs": "write pages about the recorded results in FOLDER: a page per table there, and, beside "
    "it, their index FOLDER.md and findings.md",
}
"""{option whose value is a folder of recorded results: help text}"""


def main(arguments: list[str] | None = None) -> None:
    args, overrides = parse(make_parser(), arguments)
    with exit_on_error("results"):
        if not args.table and (args.scale or args.plot_columns or overrides):
            raise UserError("--scale, --plot-columns and KEY=VALUE need --table: add it, or omit them")
        if not args.table and (args.baseline or args.show_methods or args.seeds):
            raise UserError("--baseline, --methods and --seeds need --table: add it, or omit them")
        if args.over and not (args.experiment and args.plot):
            raise UserError("--over needs --experiment and --plot: add them, or omit it")
        if (args.format or args.plot) and not (args.table or args.experiment):
            raise UserError("--format and --plot need --table or --experiment: add one, or omit them")
        if args.table:
            table = selected_table(args, overrides)
            if args.baseline:
                table.set_baseline(args.baseline)
            show_table(table, args)
        elif args.experiment:
            show_experiment(args)
        elif not use_records(args):
            sys.exit(1)


def make_parser() -> ArgumentParser:
    parser = new_parser("lrpe results", __doc__, "(--table TABLE | ... ) [options] [KEY=VALUE ...]")
    add_results_flag(parser)
    shown = parser.add_mutually_exclusive_group(required=True)
    shown.add_argument("--table", help="show this table, a file in configs/tables without .yaml")
    shown.add_argument("--experiment", help="show all runs of this experiment, such as lm/mini")
    for name, text in FOLDER_ACTIONS.items():
        folder = {"type": abs_path, "nargs": "?", "const": RECORDED, "metavar": "FOLDER"}
        shown.add_argument(f"--{name}", help=f"{text} (default: docs/results)", **folder)
    parser.add_argument("--scale", choices=SCALES, help=SCALE_HELP)
    add_seeds_flag(parser)
    text = "output format (default: a text table on a terminal, and Markdown otherwise)"
    parser.add_argument("--format", choices=("markdown", "latex", "csv"), help=text)
    text = "compare with this method instead of the table's baseline"
    parser.add_argument("--baseline", metavar="METHOD", help=text)
    text = (
        "show only the rows of these methods, also those with changed settings, such as token positions; "
        "intervals remain those among all rows"
    )
    parser.add_argument("--methods", nargs="+", dest="show_methods", metavar="METHOD", help=text)
    text = "write a plot of the validation curves to this file"
    parser.add_argument("--plot", type=image_path, metavar="FILE.png", help=text)
    text = (
        "with --experiment, plot the first metric over this setting, such as train.lr, instead of the curves"
    )
    parser.add_argument("--over", metavar="KEY", help=text)
    text = "write a plot of the table's measured numbers over its columns to this file, one line per row"
    parser.add_argument("--plot-columns", type=image_path, metavar="FILE.png", help=text)
    return parser


def add_seeds_flag(parser: ArgumentParser) -> None:
    text = "random seeds (default: those of the table and its experiments)"
    parser.add_argument("--seeds", nargs="+", type=min_int(1), help=text)


def selected_table(args: Namespace, overrides: list[str]) -> Table:
    """Returns the table that the options --table, --scale and --seeds and the overrides select."""
    if args.seeds:
        overrides = [*overrides, f"seeds={args.seeds}"]
    return Table(args.table, args.scale or "full", overrides)


def show_table(table: Table, args: Namespace) -> None:
    """Prints a table and, if requested, plots its validation curves and its numbers over the columns."""
    from fairseq_lrpe.experiments.reporting import (  # imports pandas, which takes long
        column_plot,
        plots,
        tables,
    )
    from fairseq_lrpe.experiments.reporting.encoding_descriptions import row_kind

    records = tables.read_table_runs(table, args.results)
    methods = args.show_methods
    if methods and table.settings.baseline:
        methods = [*methods, table.settings.baseline]
    summary = tables.print_results(table, records, args.format, methods)
    if args.plot:
        plots.plot_table(table, records, args.plot, set(summary["method"]))
    if args.plot_columns:
        kinds = {(row.attention, row.row): row_kind(row) for row in table.rows}
        column_plot.plot_columns(plots.table_name(table), summary, args.plot_columns, kinds)


def show_experiment(args: Namespace) -> None:
    """Prints all runs of an experiment and, if requested, plots their validation curves."""
    from fairseq_lrpe.experiments.reporting import experiment_runs, plots, sweep_plot

    records = experiment_runs.read_experiment_runs(args.experiment, args.results)
    experiment_runs.print_runs(records, args.format)
    if args.over:
        sweep_plot.plot_sweep(args.experiment, records, args.over, args.plot)
    elif args.plot:
        plots.plot_curves(args.experiment, plots.experiment_lines(records), args.plot)


def check_recorded(folder: Path) -> None:
    """Raises UserError if a folder has no recorded results, such as the repository's folder in a wheel."""
    from fairseq_lrpe.experiments.reporting import recorded_results

    if folder == RECORDED and not folder.is_dir():
        remedy = "pass the folder docs/results of a checkout of the repository"
        raise UserError(f"{folder} does not exist, because a wheel has no recorded results: {remedy}")
    recorded_results.check_recorded(folder)


def use_records(args: Namespace) -> bool:
    """Writes or checks recorded results.

    Returns:
        False if a finished run was not recorded, a number is outside the tolerance, or records have a
        problem, and True otherwise.
    """
    from fairseq_lrpe.experiments.reporting import pages, recording, validation

    if args.validate:
        check_recorded(args.validate)
        base = None if args.results == REPOSITORY / "results" else args.results  # the default has runs
        problems = validation.validate(args.validate, base)
        for problem in problems:
            print(problem)
        count = len(problems)
        print(f"{display_path(args.validate)}: {count} problem{'s' * (count != 1)}", file=sys.stderr)
        return not problems
    if args.record:
        count, refused = recording.record(args.results, args.record)
        for message in refused:
            print(f"results: not recorded: {message}", file=sys.stderr)
        print(f"{display_path(args.record)}: {count} run{'s' * (count != 1)} recorded")
        return not refused
    if args.check:
        check_recorded(args.check)
        lines, is_as_recorded = recording.check(args.results, args.check)
        print(*lines, sep="\n")
        return is_as_recorded
    if args.record_weights:
        count = recording.record_weights("lm/extrapolation_mini", args.results, args.record_weights)
        print(f"{display_path(args.record_weights)}: weights of {count} model{'s' * (count != 1)} recorded")
    else:
        check_recorded(args.write_docs)
        index, *others = pages.write(args.write_docs)
        print(f"{display_path(index)} and {len(others)} more pages are up to date")
    return True
