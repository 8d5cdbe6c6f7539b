"""The estimate of a list of runs, in groups of trainings that cost the same."""

import statistics
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.table import Column
from rich.table import Table as RichTable

from fairseq_lrpe.experiments.execution.launch import Launch
from fairseq_lrpe.experiments.execution.run_directory import read_json
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.methods import aliases
from fairseq_lrpe.utils.cli import print_wide

UTILIZATION = 0.35
"""Assumed fraction of a card's peak FLOP/s."""


class Card(NamedTuple):
    """A GPU.

    Args:
        peak: {precision: peak FLOP/s} of dense matrix products.
        memory: sizes in GB.
    """

    name: str
    peak: dict[str, float]
    memory: tuple[int, ...]


CARDS = {  # NVIDIA's datasheets of the V100 SXM2, A100 SXM and H100 SXM; fp32 without TF32, which torch does not use
    "v100": Card("V100", {"fp16": 125e12, "fp32": 15.7e12}, (16, 32)),
    "a100": Card("A100", {"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12}, (40, 80)),
    "h100": Card("H100", {"fp16": 989e12, "bf16": 989e12, "fp32": 67e12}, (80,)),
}
HERE = "here"
FLAGS = "lr", "clip_norm", "weight_decay", "warmup_updates", "adam_betas", "adam_eps"
NEUTRAL = {f"train.{flag}" for flag in FLAGS}
"""Changes of a run that do not change its cost."""


def add_estimate_flags(parser: ArgumentParser) -> None:
    """Adds --estimate and --on."""
    text = "print parameters, tokens, FLOPs, memory, disk and hours of the runs instead of running them"
    parser.add_argument("--estimate", action="store_true", help=text)
    text = "GPU of the estimated hours; here: the recorded speed of finished runs (default: %(default)s)"
    parser.add_argument("--on", choices=[*CARDS, HERE], default="v100", help=text)


def estimated_launch(args: Namespace) -> Launch:
    """Returns the launch settings to estimate, which this machine need not support.

    Raises:
        ValueError: for flags that cannot be combined with --estimate.
    """
    if args.dry_run:
        raise ValueError("--estimate and --dry-run cannot be combined: leave one out")
    nodes, precision = getattr(args, "nodes", 1), getattr(args, "precision", None) or "fp16"
    return Launch(max(args.gpus or 1, 1), nodes, cpu=False, precision=precision)


@dataclass
class Group:
    """Trainings of the same cost, which differ in their seeds and in ``NEUTRAL`` settings.

    Args:
        job: one of the trainings.
        count: number of trainings.
        finished: number of those that are finished.
        trials: number of those that are trials.
        chosen: number of trials that are chosen if all are equally likely; only these keep a checkpoint.
        estimate: of one training, None if it is not possible.
        problem: why it is not.
        hours: of one training, None if unknown.
        recorded: whether ``hours`` is from a recorded speed.
    """

    job: Job
    count: int = 0
    finished: int = 0
    trials: int = 0
    chosen: float = 0
    estimate: object = None
    problem: str | None = None
    hours: float | None = None
    recorded: bool = False

    @property
    def disk(self) -> float:
        """Bytes of the checkpoints that remain."""
        return (self.count - self.trials) * self.estimate.disk + self.chosen * self.estimate.checkpoint


def show_estimate(jobs: list[Job], card: str) -> None:
    """Prints the estimate of the jobs, and of the trials among which they choose.

    Raises:
        ValueError: the card does not have the precision, or nothing can be estimated.
    """
    precision = jobs[0].launch.precision
    if card != HERE and precision not in CARDS[card].peak:
        known = ", ".join(CARDS[card].peak)
        raise ValueError(f"--on {card}: the {CARDS[card].name} has no {precision}: choose from {known}")
    from fairseq_lrpe.experiments.estimation.costs import estimate_training  # takes seconds

    groups = make_groups(jobs)
    for group in groups:
        try:
            group.estimate = estimate_training(group.job)
        except ValueError as error:
            group.problem = f"{group.job.run.experiment}: {error}"
        else:
            set_hours(group, card)
    if not any(group.estimate for group in groups):
        raise ValueError("; ".join(dict.fromkeys(group.problem for group in groups)))
    print_groups(groups, card)


def make_groups(jobs: list[Job]) -> list[Group]:
    """Returns the trainings in groups; runs that choose among trials are not trainings themselves."""
    choosing = {job.run: job.trials() for job in jobs}
    chosen = {trial.run: 1 / len(trials) for trials in choosing.values() for trial in trials}
    trials = [trial for trials in choosing.values() for trial in trials]
    groups = {}
    for run, job in {job.run: job for job in (*jobs, *trials)}.items():
        if choosing.get(run):
            continue
        changes = tuple(change for change in run.changes if change[0] not in NEUTRAL)
        group = groups.setdefault(replace(run, seed=0, changes=changes), Group(job))
        group.count += 1
        group.finished += is_trained(job)
        group.trials += run in chosen
        group.chosen += chosen.get(run, 0)
    return list(groups.values())


def is_trained(job: Job) -> bool:
    """Whether a run is recorded as finished."""
    path = job.folder / "evaluation.json"
    return path.is_file() and b'"finished"' in path.read_bytes()


def set_hours(group: Group, card: str) -> None:
    """Sets the hours of a training, from recorded speeds if there are any."""
    job, estimate = group.job, group.estimate
    if speed := recorded_speed(job, card):
        unit, per_gpu = speed
        group.hours, group.recorded = estimate.work[unit] / (per_gpu * job.launch.gpus) / 3600, True
    elif card != HERE:
        rate = UTILIZATION * CARDS[card].peak[job.launch.precision] * job.launch.gpus
        group.hours = estimate.flops / rate / 3600


def recorded_speed(job: Job, card: str) -> tuple[str, float] | None:
    """Returns the unit and the median speed per GPU of recorded runs of the same method and experiment."""
    name = "" if card == HERE else CARDS[card].name
    folder = job.results / job.run.experiment
    names = [f"{job.run.attention}_{method}" for method in aliases(job.run.method)]
    speeds = [(unit, speed) for x in names for unit, speed, gpus in read_speeds(folder / x) if name in gpus]
    return (speeds[0][0], statistics.median(speed for _, speed in speeds)) if speeds else None


@cache
def read_speeds(folder: Path) -> list[tuple[str, float, str]]:
    """Returns (unit, speed per GPU, names of the GPUs) of each recorded speed below a folder."""
    found = []
    for path in folder.rglob("seed-*/evaluation.json"):
        measured = read_json(path).get("evaluations", {}).get("training", {})
        settings = read_json(path.with_name("run.json"))
        gpus = max(settings.get("gpus", 0), 1) * settings.get("nodes", 1)
        names = " ".join(settings.get("gpu_names", ()))
        found += [(unit.removesuffix("_per_second"), x / gpus, names) for unit, x in measured.items()]
    return found


def print_groups(groups: list[Group], card: str) -> None:
    """Prints one row per group, the sums of all, and the assumptions."""
    names = "trainings", "parameters", "tokens", "FLOPs", "GB per GPU", "GB on disk", "hours"
    table = RichTable("run", *(Column(name, justify="right") for name in names))
    for group in groups:
        table.add_row(str(group.job.run).rpartition("/")[0], *cells(group))
    known = [group for group in groups if group.estimate]
    left = [(group.count - group.finished, group) for group in known]
    gpus = groups[0].job.launch.gpus
    hours = None if any(n and group.hours is None for n, group in left) else sum(n * (g.hours or 0) for n, g in left)
    total = (
        f"{sum(group.count for group in groups):,}",
        "",
        power(sum(n * group.estimate.work["tokens"] for n, group in left)),
        power(sum(n * group.estimate.flops for n, group in left)),
        "",
        f"{sum(group.disk for group in known) / 1e9:,.0f}",
        "-" if hours is None else f"{hours:,.0f}",
    )
    table.add_section()
    table.add_row("all that are not finished", *total)
    print_wide(table)
    print_notes(groups, card)


def cells(group: Group) -> list[str]:
    """Returns the cells of a group."""
    count = f"{group.count:,}" + (f" ({group.finished:,} finished)" if group.finished else "")
    if group.estimate is None:
        return [count, *["-"] * 6]
    one = group.estimate
    hours = "-" if group.hours is None else f"{group.hours:,.1f}" + "*" * group.recorded
    return [
        count,
        f"{one.parameters:,}",
        power(one.work["tokens"]),
        power(one.flops),
        f"{one.memory / 1e9:,.1f}",
        f"{group.disk / 1e9:,.1f}",
        "finished" if group.finished == group.count else hours,
    ]


def power(value: float) -> str:
    return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def print_notes(groups: list[Group], card: str) -> None:
    """Prints what the numbers assume, and why there is no estimate of some groups."""
    for problem in dict.fromkeys(group.problem for group in groups if group.problem):
        print(f"not estimated: {problem}")
