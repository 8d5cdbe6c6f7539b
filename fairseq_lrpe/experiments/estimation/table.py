"""The estimate of a list of runs as a table, with one row for all trainings that cost the same."""

import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Column
from rich.table import Table as RichTable

from fairseq_lrpe.experiments.execution.launch import Launch
from fairseq_lrpe.experiments.execution.run_directory import read_json
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.methods import aliases
from fairseq_lrpe.utils.cli import print_wide

if TYPE_CHECKING:
    from fairseq_lrpe.experiments.estimation.costs import Estimate

UTILIZATION = 0.35
"""Assumed fraction of a card's peak FLOP/s."""


class Card(NamedTuple):
    """A GPU.

    Args:
        peak: {precision: peak FLOP/s of dense matrix products}.
        memory: largest size in GB.
    """

    name: str
    peak: dict[str, float]
    memory: int


# NVIDIA's datasheets of V100 SXM2, A100 SXM and H100 SXM; fp32 is without TF32, which torch does not use.
CARDS = {
    "v100": Card("V100", {"fp16": 125e12, "fp32": 15.7e12}, 32),
    "a100": Card("A100", {"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12}, 80),
    "h100": Card("H100", {"fp16": 989e12, "bf16": 989e12, "fp32": 67e12}, 80),
}
HERE = "here"
NEUTRAL = {
    f"train.{flag}"
    for flag in ("lr", "clip_norm", "weight_decay", "warmup_updates", "adam_betas", "adam_eps")
}
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
        ValueError: flags that cannot be combined, or a precision that the card does not have.
    """
    if args.dry_run:
        raise ValueError("--estimate and --dry-run cannot be combined: leave one out")
    precision = getattr(args, "precision", None) or "fp16"
    if args.on != HERE and precision not in CARDS[args.on].peak:
        known = " or ".join(CARDS[args.on].peak)
        raise ValueError(
            f"--on {args.on}: the {CARDS[args.on].name} has no {precision}: use --precision {known}"
        )
    return Launch(max(args.gpus or 1, 1), getattr(args, "nodes", 1), cpu=False, precision=precision)


@dataclass
class Group:
    """Trainings of the same cost, which differ in their seeds and in ``NEUTRAL`` settings.

    Args:
        run: what the trainings have in common.
        job: one of them.
        count: number of trainings.
        finished: number of those that are finished.
        trials: number of those that are trials, of which only the chosen ones keep a checkpoint.
        chosen: expected number of chosen trials.
        estimate: of one training, None if it is not possible.
        problem: why it is not.
        hours: of one training, None if unknown.
        is_recorded: whether the hours are from a recorded speed.
    """

    run: Run
    job: Job
    count: int = 0
    finished: int = 0
    trials: int = 0
    chosen: float = 0
    estimate: "Estimate | None" = None
    problem: str = ""
    hours: float | None = None
    is_recorded: bool = False

    @property
    def left(self) -> int:
        """Number of trainings that are not finished."""
        return self.count - self.finished

    @property
    def disk(self) -> float:
        """Bytes of the checkpoints that are kept in the end."""
        return (self.count - self.trials) * self.estimate.disk + self.chosen * self.estimate.checkpoint


def show_estimate(jobs: list[Job], card: str) -> None:
    """Prints the estimate of jobs and of the trials among which they choose; ValueError if there is none."""
    from fairseq_lrpe.experiments.estimation.costs import estimate_training  # takes seconds

    groups = make_groups(jobs)
    for group in groups:
        try:
            group.estimate = estimate_training(group.job)
            set_hours(group, card)
        except ValueError as error:
            group.problem = f"{group.run.experiment}: {error}"
    if not any(group.estimate for group in groups):
        raise ValueError("; ".join(dict.fromkeys(group.problem for group in groups)))
    print_groups(groups)
    print_notes(groups, card, jobs[0].launch)


def make_groups(jobs: list[Job]) -> list[Group]:
    """Groups the trainings that differ only in their seeds and in ``NEUTRAL`` settings.

    A run that chooses the best of several trials is not counted itself, but its trials are.
    """
    trials = {job.run: job.trials() for job in jobs}
    chosen = {trial.run: 1 / len(among) for among in trials.values() for trial in among}
    every = (*jobs, *(trial for among in trials.values() for trial in among))
    groups = {}
    for run, job in {job.run: job for job in every}.items():
        if trials.get(run):
            continue
        common = replace(run, seed=0, changes=tuple(x for x in run.changes if x[0] not in NEUTRAL))
        group = groups.setdefault(common, Group(common, job))
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
    """Sets the hours of a training, from a recorded speed if there is one."""
    launch, estimate = group.job.launch, group.estimate
    gpus = launch.gpus * launch.nodes
    if speeds := recorded_speeds(group.job, "" if card == HERE else CARDS[card].name):
        [unit, *_], per_gpu = zip(*speeds, strict=True)
        seconds, group.is_recorded = estimate.work[unit] / statistics.median(per_gpu), True
    elif card == HERE:
        return
    else:
        seconds = estimate.flops / (UTILIZATION * CARDS[card].peak[launch.precision])
    group.hours = seconds / gpus / 3600


def recorded_speeds(job: Job, card: str) -> list[tuple[str, float]]:
    """Returns (unit, speed per GPU) of the recorded runs of a job's experiment and method on a card."""
    folder = job.results / job.run.experiment
    names = (f"{job.run.attention}_{method}" for method in aliases(job.run.method))
    return [(unit, speed) for x in names for unit, speed, gpus in read_speeds(folder / x) if card in gpus]


@cache
def read_speeds(folder: Path) -> list[tuple[str, float, str]]:
    """Returns (unit, speed per GPU, names of the GPUs) of each recorded run below a folder."""
    found = []
    for path in folder.rglob("seed-*/evaluation.json"):
        measured = read_json(path).get("evaluations", {}).get("training", {})
        settings = read_json(path.with_name("run.json"))
        gpus = max(settings.get("gpus", 0), 1) * settings.get("nodes", 1)
        names = " ".join(settings.get("gpu_names", ()))
        found += [(unit.removesuffix("_per_second"), x / gpus, names) for unit, x in measured.items()]
    return found


def print_groups(groups: list[Group]) -> None:
    """Prints a row for each group and the sums of what is not finished."""
    names = "trainings", "parameters", "tokens", "FLOPs", "GB per GPU", "GB on disk", "hours each"
    table = RichTable(Column("run", overflow="fold"), *(Column(name, justify="right") for name in names))
    for group in groups:
        table.add_row(str(group.run).removesuffix("/seed-0"), *cells(group))
    table.add_section()
    known = [group for group in groups if group.estimate]
    tokens, flops = (
        sum(group.left * value for group, value in zip(known, values, strict=True))
        for values in zip(*((g.estimate.work["tokens"], g.estimate.flops) for g in known), strict=True)
    )
    count, disk = sum(group.left for group in groups), sum(group.disk for group in known)
    table.add_row(
        "all that is left", f"{count:,}", "", power(tokens), power(flops), "", number(disk / 1e9), ""
    )
    print_wide(table)


def cells(group: Group) -> list[str]:
    """Returns the cells of a group after its name."""
    count = f"{group.count:,}" + (f", {group.finished:,} finished" if group.finished else "")
    if group.estimate is None:
        return [count, *"------"]
    one, hours = group.estimate, "-" if group.hours is None else number(group.hours) + "*" * group.is_recorded
    return [
        count,
        f"{one.parameters:,}",
        power(one.work["tokens"]),
        power(one.flops),
        number(one.memory / 1e9),
        number(group.disk / 1e9),
        "0" if not group.left else hours,
    ]


def number(value: float) -> str:
    """Formats a number with two digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def power(value: float) -> str:
    """Formats a large number as 1.2e9."""
    return f"{value:.2e}".replace("e+", "e").replace("e0", "e")


def print_notes(groups: list[Group], card: str, launch: Launch) -> None:
    """Prints the hours of all, what the numbers assume, and why there is no estimate of some groups."""
    for line in notes(groups, card, launch):
        print(line)


def notes(groups: list[Group], card: str, launch: Launch) -> Iterator[str]:
    """Yields the lines below the table."""
    known, gpus = [group for group in groups if group.estimate], launch.gpus * launch.nodes
    left = [group for group in known if group.left]
    hours = sum(group.left * group.hours for group in left if group.hours is not None)
    gpu = "GPU or process" if card == HERE else CARDS[card].name
    days = f"{number(hours)} hours or {number(hours / 24)} days"
    yield f"Left: {days} on {gpus} {gpu}{'s' * (gpus > 1)}, one training after the other."
    if card != HERE:
        peak = f"{CARDS[card].peak[launch.precision] / 1e12:g} TFLOP/s in {launch.precision}"
        yield f"Hours: FLOPs at {UTILIZATION:.0%} of the {gpu}'s peak of {peak}."
        largest = CARDS[card].memory
        if too_large := [group for group in known if group.estimate.memory > 1e9 * largest]:
            yield f"GB per GPU: {len(too_large)} rows exceed {largest} GB: override batch.per_gpu."
    if any(group.is_recorded for group in left):
        yield "Hours*: the recorded speed of finished runs of the same experiment, attention and method."
    if unknown := sum(group.left for group in left if group.hours is None):
        yield f"Hours: unknown for {unknown:,} trainings, because no run like them is finished in --results."
    for experiment, note in dict.fromkeys((group.run.experiment, group.estimate.note) for group in known):
        if note:
            yield f"{experiment}: assumes {note}, because the data is not prepared."
    yield from dict.fromkeys(f"Not estimated: {group.problem}." for group in groups if group.problem)
    yield "Evaluations are not included. docs/cluster.md has the formulas."
