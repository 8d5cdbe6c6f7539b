"""The estimated cost of runs as a table, with one row for all trainings that cost the same."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import replace

from rich.table import Column
from rich.table import Table as RichTable

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.utils.cli import print_wide
from fairseq_lrpe.utils.errors import UserError

UTILIZATION = 0.35
"""Assumed fraction of a GPU's peak FLOP/s."""
COLUMNS = ("trainings", "parameters", "tokens", "FLOPs", "calls", "GB per GPU", "hours each", "bound by")
# NVIDIA's datasheets of V100 SXM2, A100 SXM and H100 SXM; fp32 is without TF32, which torch does not use.
PEAKS = {
    "v100": {"fp16": 125e12, "fp32": 15.7e12},
    "a100": {"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12},
    "h100": {"fp16": 989e12, "bf16": 989e12, "fp32": 67e12},
}
"""{GPU: {precision: peak FLOP/s of dense matrix products}}"""
GIGABYTES = {"v100": 16, "a100": 40, "h100": 80}
"""{GPU: memory in GB of its smallest version}"""
NEUTRAL = (
    "train.lr",
    "train.clip_norm",
    "train.weight_decay",
    "train.warmup_updates",
    "train.adam_betas",
    "train.adam_eps",
)
"""Settings whose changes do not affect the cost of a run."""


def add_estimate_flags(parser: ArgumentParser) -> None:
    """Adds the flags --estimate and --on to a parser."""
    text = "print parameters, FLOPs, memory and hours of the runs instead of running them"
    parser.add_argument("--estimate", action="store_true", help=text)
    text = "GPU for which hours are estimated (default: %(default)s)"
    parser.add_argument("--on", choices=PEAKS, default="v100", help=text)


def on_gpus(jobs: Iterable[Job], args: Namespace) -> list[Job]:
    """Returns the jobs on the requested GPUs, which this machine need not have.

    Raises:
        UserError: if the GPUs do not support the precision.
    """
    precision = args.precision or "fp16"
    if precision not in PEAKS[args.on]:
        known = " or ".join(PEAKS[args.on])
        raise UserError(f"--on {args.on} has no {precision}: use --precision {known}")
    machine = {"gpus": args.gpus or 1, "nodes": args.nodes, "cpu": False, "precision": precision}
    return [replace(job, **machine) for job in jobs]


def show_estimate(jobs: Iterable[Job], args: Namespace) -> None:
    """Prints the estimated cost of jobs, or of the trials of those that choose among trials.

    Raises:
        UserError: if no job can be estimated.
    """
    # These import torch and fairseq, which takes seconds.
    from fairseq_lrpe.experiments.estimation.cost import estimate_training
    from fairseq_lrpe.experiments.estimation.launches import PASS_CALL, UPDATE_CALL

    jobs = on_gpus(jobs, args)
    gpus = jobs[0].gpus * jobs[0].nodes
    peak = PEAKS[args.on][jobs[0].precision]
    table = RichTable(Column("run", overflow="fold"))
    for name in COLUMNS:
        table.add_column(name, justify="right")
    total = 0.0
    is_estimated = False
    problems: dict[str, None] = {}
    too_large = []
    for run, group in group_by_cost(jobs).items():
        finished = sum(is_trained(job) for job in group)
        count = f"{len(group):,}" + (f", {finished:,} finished" if finished else "")
        name = str(run).removesuffix("/seed-0")
        try:
            estimate = estimate_training(group[0])
        except ValueError as error:
            problems[f"{run.experiment}: {error}"] = None
            table.add_row(name, count, *["-"] * (len(COLUMNS) - 1))
            continue
        is_estimated = True
        if estimate.memory > GIGABYTES[args.on] * 1e9:
            needed = f"{name} needs {number(estimate.memory / 1e9)} GB"
            existing = f"the {GIGABYTES[args.on]} GB of a {args.on}"
            too_large.append(f"{needed}, more than {existing}: reduce batch.per_gpu, or use another GPU.")
        arithmetic = estimate.flops / (UTILIZATION * peak * gpus)
        hours = max(arithmetic, estimate.host) / 3600
        total += hours * (len(group) - finished)
        table.add_row(
            name,
            count,
            f"{estimate.parameters:,}",
            scientific(estimate.tokens),
            scientific(estimate.flops),
            f"{estimate.calls:,}",
            number(estimate.memory / 1e9),
            number(hours),
            "FLOPs" if arithmetic >= estimate.host else "calls",
        )
    if not is_estimated:
        raise UserError("; ".join(problems))
    print_wide(table)
    print(f"Not finished: {number(total)} hours on {gpus} × {args.on}, one training after the other.")
    print_assumptions(peak, jobs[0].precision, PASS_CALL, UPDATE_CALL)
    for message in too_large:
        print(message)
    for problem in problems:
        print(f"Not estimated: {problem}.")
    print("Evaluations are not included. docs/cluster.md explains the numbers.")


def print_assumptions(peak: float, precision: str, pass_call: float, update_call: float) -> None:
    """Prints the assumptions under which hours are estimated.

    Args:
        peak: peak of a GPU in FLOP/s.
        precision: precision of the training.
        pass_call: seconds of a call in the forward and backward pass.
        update_call: seconds of a call of the optimizer.
    """
    print(f"Hours: FLOPs at {UTILIZATION:.0%} of the peak of {peak / 1e12:g} TFLOP/s in {precision},")
    print("or, if it is longer, the time to start the calls of operations: about")
    each = f"{pass_call * 1e6:g} µs each in forward and backward passes and {update_call * 1e6:g}"
    print(f"{each} in the optimizer, as measured on the host of an H200.")


def is_trained(job: Job) -> bool:
    try:
        return "finished" in job.record
    except UserError as error:
        print(error, file=sys.stderr)
        return False


def group_by_cost(jobs: list[Job]) -> dict[Run, list[Job]]:
    """Returns {run with seed 0 and without ``NEUTRAL`` changes: jobs whose trainings cost the same}.

    A run that chooses the best of several trials is replaced by its trials.
    """
    trained = {}
    for job in jobs:
        for trial in job.trials() or [job]:
            trained[trial.run] = trial
    groups = {}
    for run, job in trained.items():
        changes = tuple(change for change in run.changes if change[0] not in NEUTRAL)
        groups.setdefault(replace(run, seed=0, changes=changes), []).append(job)
    return groups


def scientific(value: float) -> str:
    """Returns a number as text with three significant digits and an exponent, such as "1.23e9"."""
    return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def number(value: float) -> str:
    """Returns a number as text with two significant digits, or as an integer if it is at least 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
