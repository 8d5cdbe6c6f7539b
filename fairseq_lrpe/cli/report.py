"""Write an HTML report of a results folder: tables with published numbers, curves, and the states of runs.

The report is a single file that needs no network connection. The command requires the extra `report`. --atlas
writes another page instead, the atlas of encodings: formula, effect, plot, parameters and numbers of every
method, to compare encodings.

examples:
  lrpe report results
  lrpe report results --out report.html
  lrpe report --atlas atlas.html
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from datetime import UTC, datetime
from importlib.util import find_spec

from fairseq_lrpe.cli.results import RECORDED
from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, html_path
from fairseq_lrpe.utils.files import output_folder, write_atomic

INSTALL = "pip install 'fairseq-lrpe[report]'"


def main(arguments: list[str] | None = None) -> None:
    usage = "%(prog)s RESULTS [--out FILE.html]\n       %(prog)s [RESULTS] --atlas FILE.html"
    parser = ArgumentParser("lrpe report", usage, __doc__, formatter_class=RawDescriptionHelpFormatter)
    text = "folder of runs, or of recorded results (default of --atlas: docs/results)"
    parser.add_argument("results", type=abs_path, nargs="?", metavar="RESULTS", help=text)
    pages = parser.add_mutually_exclusive_group()
    pages.add_argument("--out", type=html_path, metavar="FILE.html", help="default: report.html in RESULTS")
    pages.add_argument("--atlas", type=html_path, metavar="FILE.html", help="write the atlas of encodings")
    args = parser.parse_args(arguments)
    if args.results is None and not args.atlas:
        parser.error("the following arguments are required: RESULTS")
    with exit_on_error("report"):
        if find_spec("plotly") is None:
            raise ValueError(f"the package plotly is missing; install it with: {INSTALL}")
        if args.atlas:
            write_atlas(args.results or RECORDED, args.atlas)
            return
        if not args.results.is_dir():
            raise ValueError(f"the results folder {args.results} does not exist")
        write_report(args.results, args.out or args.results / "report.html")


def write_report(results, out) -> None:
    """Writes the report to a file and prints the number of its tables and the states of its runs."""
    from fairseq_lrpe.experiments.reporting import html

    with output_folder(out.parent):
        report = html.scan(results)
        write_atomic(out, html.render(report, datetime.now(UTC)).encode(errors="replace"))
    sizes = {"table": len(report.tables), "run": len(report.records)}
    shown = " and ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in sizes.items())
    states = ", ".join(f"{n} {state}" for state, n in report.state_counts().items() if n)
    print(f"{out} shows {shown}: {states}", file=sys.stderr)


def write_atlas(results, out) -> None:
    """Writes the atlas of encodings to a file."""
    from fairseq_lrpe.experiments.reporting import atlas

    with output_folder(out.parent):
        write_atomic(out, atlas.render(results))
    shown = f"{len(METHODS)} methods and {len(atlas.TOKEN_POSITIONS)} kinds of token positions"
    print(f"{out} shows {shown}", file=sys.stderr)
