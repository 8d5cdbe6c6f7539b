"""The trainings of the GPU check: runs of the papers' tables, one seed each, in the folder of its report.

They are ordinary runs of ``lrpe train``: finished ones are not repeated, and interrupted ones are resumed.
Requires fairseq and the other packages in setup.py.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fairseq_lrpe.benchmarks import machine
from fairseq_lrpe.benchmarks.gpu_report import Deadline, Part
from fairseq_lrpe.experiments.estimation.costs import estimate_training
from fairseq_lrpe.experiments.execution import scheduler
from fairseq_lrpe.experiments.execution.launch import Launch
from fairseq_lrpe.experiments.execution.run_directory import read_json
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.experiments.spec.table import Table

SEED = "seeds=[1]"
CPU_OVERRIDES, CPU_RUNS = ["updates=20"], 2
"""On a CPU: changes of the configuration "mini", and the number of runs of each selection."""


class Selection(NamedTuple):
    """The runs of a table at a scale; of some experiments, methods and attentions, or of all if empty."""

    table: str
    scale: str = "full"
    experiments: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()

    def jobs(self, results: Path) -> dict[Run, Job]:
        """Returns {run: job} of the first seed; without a GPU, a few short runs of the same table."""
        if not machine.ON_GPU:
            table = Table(self.table, "mini", [SEED, *CPU_OVERRIDES])
            return {run: Job(table.experiment_of(run), run, results) for run in table.runs()[:CPU_RUNS]}
        table = Table(self.table, self.scale, [SEED])
        runs = (run for run in table.runs(self.methods) if self.includes(run))
        return {run: Job(table.experiment_of(run), run, results) for run in runs}

    def includes(self, run: Run) -> bool:
        """Returns whether a run of the table is selected by its experiment and its attention."""
        is_wanted = run.experiment in (self.experiments or (run.experiment,))
        return is_wanted and run.attention in (self.attentions or (run.attention,))


def measure_runs(part: Part, deadline: Deadline, results: Path, selection: Selection) -> None:
    """Executes the selected runs until the deadline, those of the shortest experiment first."""
    jobs, gpus = selection.jobs(results), int(machine.ON_GPU)
    total = len(jobs)
    try:
        jobs, messages = scheduler.jobs_with_data(jobs, gpus)
    except ValueError as error:  # no run has data
        jobs, messages = {}, str(error).split("; ")
    for message in messages:
        part.skip(f"{message}.")
    rows = part.table(
        f"Runs of {selection.table}",
        "One seed, with the experiment's settings. The speed is the median of those that fairseq logged.",
    )
    precision = "bf16" if machine.has_bfloat16() else "fp16" if gpus else "fp32"
    launch = Launch(gpus, cpu=not gpus, precision=precision)
    done = 0
    for run, job in shortest_first(jobs):
        if job.state != "finished":
            print(f"gpu_check: {run}", flush=True)
            if error := execute(job, launch, deadline):
                part.skip(f"{run} failed: {error}.")
                continue
        if job.state == "finished":
            done += 1
            rows += measured_rows(job)
    if done < total:
        part.skip(f"{done} of {total} runs are finished.")


def shortest_first(jobs: dict[Run, Job]) -> list[tuple[Run, Job]]:
    """Returns the runs, sorted by the estimated FLOPs of the first run of their experiment."""

    @cache
    def flops(experiment):
        return estimate_training(next(job for run, job in jobs.items() if run.experiment == experiment)).flops

    return sorted(jobs.items(), key=lambda item: flops(item[0].experiment))


def execute(job: Job, launch: Launch, deadline: Deadline) -> str | None:
    """Executes a run until the deadline; returns the message of its error, or None without an error."""
    if not deadline.left():
        return None
    stop = threading.Event()
    timer = threading.Timer(deadline.left(), stop.set)
    timer.start()
    share = scheduler.share_of_machine(0, 1, int(machine.ON_GPU))
    error = scheduler.execute(replace(job, launch=launch, environment=share, stop=stop))
    timer.cancel()
    return None if stop.is_set() else error


def measured_rows(job: Job) -> Iterator[dict]:
    """Yields a row of the report for each evaluation of a finished run and each of its metrics."""
    evaluations = read_json(job.folder / "evaluation.json")["evaluations"]
    speed = evaluations.get("training", {}).get("tokens_per_second")  # not logged in very short runs
    for name in job.kind.evaluations(job.cfg):
        measured = {metric: evaluations[name].get(metric) for metric in job.kind.metrics}
        yield {"run": str(job.run), "evaluation": name, **measured, "tokens/s": speed}
