"""List the published methods, or explain the flags that select and configure encodings.

An architecture is named <attention>_<family>_<method>, such as linear_lm_tmlr_type1. For example:

  lrpe methods --flags
"""

import argparse

from fairseq_lrpe.methods import METHODS
from fairseq_lrpe.utils.cli import new_parser, print_wide
from fairseq_lrpe.utils.subprocesses import as_flags


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe methods", __doc__, "[--flags]")
    text = "explain the flags of attention, encodings and token positions instead of listing the methods"
    parser.add_argument("--flags", action="store_true", help=text)
    if parser.parse_args(arguments).flags:
        print_flags()
    else:
        print_methods()


def print_methods() -> None:
    from rich.table import Table

    table = Table("method", "attention", "flags", "source", title="--arch <attention>_<family>_<method>")
    for name, method in METHODS.items():
        flags = " ".join(map(str, as_flags(method.flags))) or "(defaults)"
        table.add_row(name, ", ".join(method.attentions()), flags, method.source)
    print_wide(table)


def print_flags() -> None:
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from fairseq_lrpe.config import PositionConfig

    parser = argparse.ArgumentParser("fairseq-train --user-dir fairseq_lrpe")
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    gen_parser_from_dataclass(parser, PositionConfig())
    parser.print_help()
