"""Executes the runs of a table in an order that respects their dependencies, several at a time."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairseq_lrpe.experiments.execution import progress
from fairseq_lrpe.experiments.execution.launch import update_freq, visible_gpus
from fairseq_lrpe.experiments.execution.run_directory import IN_USE, is_locked
from fairseq_lrpe.experiments.execution.runner import Job, data_sizes, is_finished, was_discarded
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.utils.subprocesses import die_with_parent


class LocalLauncher:
    """A context manager that starts runs as processes on this machine, and terminates them on exit.

    Args:
        jobs: the maximum number of runs at a time.
        gpus: the number of GPUs of each run; if None, each run uses its default.
    """

    def __init__(self, jobs: int, gpus: int | None):
        self.jobs, self.gpus = jobs, gpus
        self.slots: dict[int, tuple[Run, subprocess.Popen, IO]] = {}

    def __enter__(self) -> "LocalLauncher":
        return self

    def __exit__(self, *_) -> None:
        for _, process, _ in self.slots.values():
            process.terminate()
        for _, process, errors in self.slots.values():
            process.wait()
            errors.close()

    @property
    def is_full(self) -> bool:
        return len(self.slots) == self.jobs

    @property
    def running(self) -> list[Run]:
        return [run for run, *_ in self.slots.values()]

    def launch(self, run: Run, arguments: list[str]) -> None:
        """Starts ``lrpe train`` with these arguments in a free slot."""
        slot = next(slot for slot in range(self.jobs) if slot not in self.slots)
        # A pipe that is read at the end may be full before, which blocks the process.
        errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        environment = job_environment(slot, self.jobs, self.gpus)
        self.slots[slot] = run, start_process(arguments, environment, errors), errors

    def collect(self) -> Iterator[tuple[Run, int, str]]:
        """Yields the run, exit code and standard error of each process that has ended, and frees its slot."""
        for slot, (run, process, errors) in list(self.slots.items()):
            if process.poll() is not None:
                del self.slots[slot]
                with errors:
                    errors.seek(0)
                    yield run, process.returncode, errors.read().strip()


def start_process(
    arguments: list[str], environment: dict[str, str], stderr: IO | int = subprocess.PIPE
) -> subprocess.Popen:
    """Starts ``lrpe train`` in a process that ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-m", "fairseq_lrpe", "train", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches only this process, which terminates the others
        preexec_fn=die_with_parent(),
    )


def job_environment(slot: int, jobs: int, gpus: int | None) -> dict[str, str]:
    """Returns the environment variables that give a job its share of the GPUs or CPU cores.

    An existing OMP_NUM_THREADS takes precedence, since on cores that are shared with other work, the
    synchronization of many threads slows down training several times.
    """
    share = visible_gpus()[slot * (gpus or 0) : (slot + 1) * (gpus or 0)]
    if share:
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(share)}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // jobs)), **os.environ}


def gpus_per_job(jobs: int, gpus: int | None, dry_run: bool) -> int | None:
    """Returns the number of GPUs of each job, or None for its default; raises ValueError for too few GPUs."""
    available = len(visible_gpus())
    if gpus is None and available:
        if available < jobs:
            raise ValueError(f"--jobs {jobs}: each job needs a GPU, and this machine has {available}")
        return available // jobs
    if available and gpus * jobs > available and not dry_run:
        raise ValueError(f"--jobs {jobs} --gpus {gpus}: the number of GPUs of this machine is {available}")
    return gpus


def jobs_with_data(
    planned: dict[Run, Job], gpus: int | None, nodes: int = 1
) -> tuple[dict[Run, Job], list[str]]:
    """Returns runs with data, and a message per experiment without data; ValueError if no run has data."""
    ready, messages = {}, {}
    for run, job in planned.items():
        update_freq(job.cfg.batch, gpus or 0, nodes)
        try:
            if not planned.keys() & job.experiment.needs(run):
                job.check_start()
            data_sizes(job.kind, job.cfg)
            ready[run] = job
        except ValueError as error:
            messages[f"{run.experiment} is skipped: {error}"] = None
    if not ready:
        raise ValueError("; ".join(messages))
    return ready, list(messages)


def train_arguments(job: Job) -> list[str]:
    """Returns the arguments of ``lrpe train`` that execute a run, except the flags of the machine."""
    run, initial = job.run, job.experiment.starts_from(job.run)
    arguments = [run.experiment, run.method, "--attention", run.attention, "--seed", str(run.seed)]
    arguments += [*(f"{key}={value}" for key, value in run.changes), *job.experiment.free]
    # Overrides of a table, but not of `lrpe train`, also apply to the run that initializes this one. Its
    # checkpoint is given only in this case: a run with a path in its settings cannot be recorded.
    if initial != job.experiment.without_overrides.starts_from(run):
        arguments.append(f"starts_from={job.starts_from}")
    return arguments


def is_complete(job: Job) -> bool:
    """Returns whether all evaluations of a run are recorded, or the run is a trial that was discarded."""
    is_trial = bool(job.experiment.cfg.choose) and not job.trials()
    return job.folder.is_dir() and (is_finished(job) or (is_trial and was_discarded(job)))


def execute_runs(jobs: dict[Run, Job], launcher: LocalLauncher, flags: list[str]) -> list[str]:
    """Executes the runs that are not complete, each after the runs that it needs.

    Waits for runs that another process executes, such as those of another table. A failed run does not stop
    the others. ``flags`` are further arguments of ``lrpe train``. Returns a message for each failed run.
    """
    priority = {run: number for number, run in enumerate(jobs) if not is_complete(jobs[run])}
    needs = {run: priority.keys() & jobs[run].experiment.needs(run) for run in priority}
    order = TopologicalSorter(needs)
    order.prepare()
    ready, in_use, errors, last_report = [], set(), [], time.monotonic()
    console = Console(highlight=False, soft_wrap=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as display, launcher:
        bar = display.add_task("", total=len(jobs), completed=len(jobs) - len(priority))

        def finish(run):
            order.done(run)
            display.advance(bar)

        while order.is_active():
            ready = sorted([*ready, *order.get_ready()], key=priority.get)
            for run in list(ready) if not launcher.is_full else ():
                if is_locked(run.folder(jobs[run].results)):
                    if run not in in_use:
                        console.print(f"waiting  {run}: in use by another process")
                    in_use.add(run)
                    continue
                ready.remove(run)
                if is_complete(jobs[run]):  # completed by another process
                    finish(run)
                    continue
                console.print(f"started  {run}")
                launcher.launch(run, [*train_arguments(jobs[run]), *flags])
                if launcher.is_full:
                    break
            for run, code, error in launcher.collect():
                if code and IN_USE in error:  # another process has locked it: try the other runs first
                    priority[run] = max(priority.values()) + 1
                    ready.append(run)
                    continue
                if code:
                    errors.append(f"{run}: {error}")
                console.print(f"{'FAILED  ' if code else 'finished'} {run}")
                finish(run)
            if time.monotonic() - last_report >= progress.REPORT_INTERVAL:
                last_report = time.monotonic()
                for run in launcher.running:
                    console.print(progress.describe_job(jobs[run]))
            display.update(bar, description=", ".join(map(str, launcher.running)))
            time.sleep(0.3)
    return errors
