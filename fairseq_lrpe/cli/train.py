"""Train and evaluate a method in an experiment, with one run per seed and value of the experiment's grid.

configs/EXPERIMENT.yaml defines the training. KEY=VALUE overrides a setting, and arguments after -- are passed
to fairseq-train. Results are written to RESULTS/EXPERIMENT/ATTENTION_METHOD/[KEY=VALUE/]seed-SEED. The same
command resumes an interrupted run from its last checkpoint and does not repeat a finished one. For example:

  lrpe train lm/mini tmlr_type1 --seeds 1 train.dropout=0.2
"""

import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import replace

from fairseq_lrpe import extensions
from fairseq_lrpe.experiments.definition.config_files import experiments
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.estimation.table import add_estimate_flags, show_estimate
from fairseq_lrpe.experiments.execution import runner, slurm
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.launch import add_machine_flags, choose_machine, train_command
from fairseq_lrpe.methods import check_method
from fairseq_lrpe.utils.cli import exit_on_error, min_int, new_parser, resumable
from fairseq_lrpe.utils.errors import UserError

OVERRIDE = re.compile(r"[\w.]+=")
SWITCHES = ("--cpu", "--dry-run", "--estimate", "--wait", "--status", "--cancel", "--help")
"""Options that take no value, from all commands that accept KEY=VALUE."""


def main(arguments: list[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, extra_flags = split_at_dashes(words)
    with exit_on_error("train"):
        # The help lists the experiments, whose folders may be wrong.
        args, overrides = parse(make_parser(), words)
        experiment = Experiment.load(args.experiment, overrides)
        check_method(args.method, args.attention, "pass --attention {}")
        runs = experiment.runs(args.attention, args.method, args.seeds)
        jobs = [Job(experiment, run, args.results, extra_flags=extra_flags) for run in runs]
        if args.estimate:
            show_estimate(jobs, args)
        elif slurm.is_requested(args):
            errors = slurm.run_on_cluster(args, {job.run: job for job in jobs})
            if errors:
                raise UserError("; ".join(errors))
        else:
            execute_jobs(jobs, args)


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments before and after --; those after it are for fairseq-train."""
    if "--" not in words:
        return words, []
    index = words.index("--")
    return words[:index], words[index + 1 :]


def execute_jobs(jobs: list[Job], args: Namespace) -> None:
    """Executes jobs on this machine one after the other; with --dry-run, prints their commands instead."""
    machine = choose_machine(args)
    jobs = [replace(job, **machine) for job in jobs]
    if args.dry_run:
        for job in jobs:
            print_commands(job.trials() or [job])
        return
    for job in jobs:
        runner.check(job)
    with resumable():
        for job in jobs:
            runner.execute_run(job)


def print_commands(jobs: Iterable[Job]) -> None:
    """Prints the training command of each job, or a comment if it needs a checkpoint that does not exist."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in extensions.variables().items()]
    for job in jobs:
        if job.starts_from and not job.starts_from.exists():
            print(f"# {job.run}: the command depends on {job.starts_from}, which does not exist yet")
        elif job.kind.trains:
            print(*variables, shlex.join(train_command(job)))


def parse(parser: ArgumentParser, arguments: list[str] | None) -> tuple[Namespace, list[str]]:
    """Returns the parsed arguments, and the overrides KEY=VALUE among ``arguments`` (default: sys.argv).

    Arguments KEY=VALUE that are values of options, such as those of --slurm, are no overrides.
    """
    words = []
    overrides = []
    before = ""
    for word in sys.argv[1:] if arguments is None else arguments:
        if OVERRIDE.match(word) and not takes_value(before):
            overrides.append(word)
        else:
            words.append(word)
        before = word
    return parser.parse_args(words), overrides


def takes_value(word: str) -> bool:
    """Returns whether a word is an option, possibly abbreviated, whose value is the next word."""
    is_switch = any(switch.startswith(word) for switch in SWITCHES)
    return word.startswith("--") and not is_switch and "=" not in word


def make_parser() -> ArgumentParser:
    usage = "EXPERIMENT METHOD [options] [KEY=VALUE ...] [-- fairseq-train's flags]"
    parser = new_parser("lrpe train", __doc__, usage)
    text = f"experiment to run: {', '.join(experiments())}"
    parser.add_argument("experiment", metavar="EXPERIMENT", help=text)
    text = "method that `lrpe methods` lists, or fairseq for fairseq's own model (with --attention softmax)"
    parser.add_argument("method", metavar="METHOD", help=text)
    text = "type of self-attention: linear (default) or softmax"
    parser.add_argument("--attention", default="linear", help=text)
    text = "random seeds; each seed has its own runs (default: 1)"
    parser.add_argument("--seeds", type=min_int(1), nargs="+", default=[1], help=text)
    text = "address of one of the nodes, if --nodes is above 1; execute the same command on every node"
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help=text)
    text = "number of jobs in SLURM's queue at a time (default: all)"
    parser.add_argument("--jobs", type=min_int(1), help=text)
    add_machine_flags(parser)
    slurm.add_flags(parser)
    add_estimate_flags(parser)
    return parser
