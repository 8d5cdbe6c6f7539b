"""Write an HTML report of a results folder: tables with published numbers, curves, and the states of runs.

The report is a single file that needs no network connection. The command requires the extra `report`. --atlas
writes another page instead, the atlas of encodings: formula, effect, plot, parameters and numbers of every
method and kind of token positions, to compare them.

examples:
  lrpe report
  lrpe report --results docs/results --out report.html
  lrpe report --atlas atlas.html
"""

import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from fairseq_lrpe.cli.results import RECORDED, check_recorded
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, html_path, new_parser
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import REPOSITORY, output_folder, write_atomic


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe report", __doc__, "[options]")
    text = "folder with runs or recorded results (default: results, or docs/results with --atlas)"
    parser.add_argument("--results", type=abs_path, help=text)
    pages = parser.add_mutually_exclusive_group()
    text = "HTML file to which the report is written (default: report.html in the results folder)"
    pages.add_argument("--out", type=html_path, metavar="FILE.html", help=text)
    text = "write the atlas of encodings to this file instead"
    pages.add_argument("--atlas", type=html_path, metavar="FILE.html", help=text)
    args = parser.parse_args(arguments)
    with exit_on_error("report"):
        if find_spec("plotly") is None:
            raise UserError("plotly is missing: run `pip install '.[report]'` in the checkout")
        if args.atlas:
            if not args.results:
                check_recorded(RECORDED)
            write_atlas(args.results or RECORDED, args.atlas)
        else:
            results = args.results or REPOSITORY / "results"
            write_report(results, args.out or results / "report.html")


def write_report(results: Path, out: Path) -> None:
    """Writes the report to a file and prints the number of its tables and the states of its runs."""
    from fairseq_lrpe.experiments.reporting import report

    content = report.scan(results)
    with output_folder(out.parent):
        write_atomic(out, report.render(content, datetime.now(UTC)).encode(errors="replace"))
    shown = f"{counted(len(content.tables), 'table')} and {counted(len(content.records), 'run')}"
    states = ", ".join(f"{count} {state}" for state, count in content.state_counts().items() if count)
    print(f"{out} shows {shown}: {states}", file=sys.stderr)


def counted(count: int, name: str) -> str:
    """Returns ``count`` with the noun ``name`` in the singular or plural, such as "2 runs"."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def write_atlas(results: Path, out: Path) -> None:
    """Writes the atlas of encodings, with the numbers in ``results``, to a file."""
    from fairseq_lrpe.experiments.reporting import atlas

    with output_folder(out.parent):
        write_atomic(out, atlas.render(results))
    print(f"{out} shows the atlas", file=sys.stderr)
