"""Measures training steps of two models alternately, and writes their speeds to a JSON file."""

import json
import statistics
from argparse import Namespace

from fairseq_lrpe.benchmarks import shared
from fairseq_lrpe.benchmarks.speed import compare
from fairseq_lrpe.utils.cli import new_parser, path_arg
from fairseq_lrpe.utils.files import write_atomic


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("lrpe measure-steps", __doc__, "SETTINGS OUT")
    parser.add_argument("settings", type=json.loads, help="JSON: the arguments of speed.compare, and cpu")
    parser.add_argument("out", type=path_arg, help="the JSON file to write")
    args = parser.parse_args(arguments)
    settings = Namespace(**args.settings)
    if settings.cpu:
        shared.DEVICE = "cpu"
    with shared.measuring("measure-steps"):
        times = compare(settings.arch, settings.base, settings, **settings.flags)
    own, base = (statistics.median(taken) for taken in zip(*times, strict=True))
    write_atomic(args.out, json.dumps({"relative_speed": base / own, "milliseconds": 1000 * own}) + "\n")
