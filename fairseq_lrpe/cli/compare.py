"""Compare two runs: the settings and flags of methods that differ, and the measurements of all their seeds.

RUN is the folder of one seed or the folder that contains all of them; both have the same effect. A
measurement differs if the interval of its difference, which needs three common seeds, does not contain 0. For
example:

  lrpe compare results/lm/mini/linear_rope/seed-1 results/lm/mini/linear_tmlr_type1/seed-1
"""

from fairseq_lrpe.utils.cli import abs_path, exit_on_error, new_parser


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe compare", __doc__, "RUN RUN [options]")
    parser.add_argument(
        "runs",
        nargs=2,
        type=abs_path,
        metavar="RUN",
        help="folder of one seed of the run, such as seed-1, or of all its seeds",
    )
    text = "output format (default: a text table on a terminal, and Markdown otherwise)"
    parser.add_argument("--format", choices=("markdown", "latex"), help=text)
    args = parser.parse_args(arguments)
    with exit_on_error("compare"):
        from fairseq_lrpe.experiments.reporting import comparison, renderers

        renderers.show(list(comparison.comparison_sections(*args.runs)), args.format)
