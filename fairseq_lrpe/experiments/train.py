"""Trains a method in an experiment, then evaluates it: one run, or one for each value of its grid.

What is trained is said in configs/EXPERIMENT.yaml; KEY=VALUE changes a value in it, and what follows -- goes
to fairseq-train as it is. Everything is written to RESULTS/EXPERIMENT/ATTENTION_METHOD/[KEY=VALUE/]seed-SEED:
started again, a run continues from its last checkpoint, and a finished one is not repeated.
"""

import re
import shlex
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter

from fairseq_lrpe.experiments import runner
from fairseq_lrpe.experiments.experiment import Experiment, experiments
from fairseq_lrpe.experiments.launch import add_machine_flags, choose_launch, train_command
from fairseq_lrpe.experiments.runner import Job
from fairseq_lrpe.methods import check_method
from fairseq_lrpe.programs import at_least, one_sentence

OVERRIDE = re.compile(r"[\w.]+=")


def main(arguments=None):
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    more = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, more = arguments[:cut], arguments[cut + 1 :]
    args, overrides = parse(parser(), arguments)
    with one_sentence("train"):
        experiment = Experiment.load(args.experiment, overrides)
        check_method(args.method, args.attention)
        runs = experiment.runs(args.attention, args.method, args.seed)
        launch = choose_launch(args)
        do_all([Job(experiment, run, args.results, launch, more) for run in runs], args.dry_run)


def do_all(jobs: list[Job], dry_run: bool) -> None:
    """Does the jobs one by one, or prints their commands; all are checked before the first starts."""
    for job in jobs:
        if not dry_run:
            job.check()
    for job in jobs:
        if not dry_run:
            runner.do(job)
            continue
        for one in job.trials() or [job]:
            print(shlex.join(train_command(one)))


def parse(parser: ArgumentParser, arguments: list[str] | None) -> tuple[Namespace, list[str]]:
    """Returns the arguments (default: the command line's), and the KEY=VALUEs that stand among them."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    overrides = [word for word in arguments if OVERRIDE.match(word)]
    return parser.parse_args([word for word in arguments if not OVERRIDE.match(word)]), overrides


def new_parser(prog: str, description: str, arguments: str) -> ArgumentParser:
    """Returns a parser for ``prog``, whose help shows the description as it is written."""
    usage = f"%(prog)s {arguments}"
    return ArgumentParser(prog, usage, description, formatter_class=RawDescriptionHelpFormatter)


def parser() -> ArgumentParser:
    usage = "EXPERIMENT METHOD [options] [KEY=VALUE ...] [-- fairseq-train's flags]"
    parser = new_parser("train.sh", __doc__, usage)
    parser.add_argument("experiment", help=", ".join(experiments()))
    parser.add_argument("method", help="python -m fairseq_lrpe.methods lists them; fairseq is its own model")
    parser.add_argument("--attention", default="linear", help="linear (default) or softmax")
    parser.add_argument("--seed", type=at_least(1), nargs="+", default=[1], help="default: 1")
    add_machine_flags(parser)
    return parser


if __name__ == "__main__":
    main()
