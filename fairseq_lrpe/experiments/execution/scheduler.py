"""Execution of the runs of a table in an order that respects their dependencies, several at a time."""

import os
import threading
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from graphlib import TopologicalSorter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution import progress
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.launch import update_freq, visible_gpus
from fairseq_lrpe.experiments.execution.run_directory import InUse
from fairseq_lrpe.experiments.execution.run_settings import data_sizes
from fairseq_lrpe.experiments.execution.runner import check, check_finished, check_start, execute_run
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.subprocesses import CommandFailed, available_cores

POLL_SECONDS = 0.3


def share_of_machine(slot: int, jobs: int, gpus: int | None) -> dict[str, str]:
    """Returns {variable: value} of the environment that gives a run its share of the GPUs or CPU cores.

    An existing OMP_NUM_THREADS takes precedence, since many threads are slow on cores with other work.

    Args:
        slot: the number of the share, from 0 to ``jobs`` - 1.
        jobs: the number of shares.
        gpus: the number of GPUs of each share, or None without GPUs.
    """
    count = gpus or 0
    share = visible_gpus()[slot * count : (slot + 1) * count]
    if share:
        return {"CUDA_VISIBLE_DEVICES": ",".join(share)}
    cores = max(1, available_cores() // jobs)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(cores)}


def jobs_with_data(
    planned: dict[Run, Job], gpus: int | None, nodes: int = 1
) -> tuple[dict[Run, Job], list[str]]:
    """Returns {run: job} of the runs that can start, and messages about the other runs.

    A run cannot start if its data or the checkpoint from which it starts is missing, or if it is finished
    with other data or settings.

    Raises:
        UserError: if no run can start, or if a batch cannot be divided among the GPUs.
    """
    ready = {}
    messages = []
    for run, job in planned.items():
        update_freq(job.cfg.batch, gpus or 0, nodes)
        message = obstacle(job, planned)
        if message is None:
            ready[run] = job
        elif message not in messages:  # one for all runs of an experiment
            messages.append(message)
    if not ready:
        raise UserError("; ".join(messages))
    return ready, messages


def obstacle(job: Job, planned: dict[Run, Job]) -> str | None:
    """Returns a message that says why a job cannot start, or None; runs that it needs may be ``planned``."""
    run = job.run
    try:
        if not planned.keys() & job.experiment.needs(run):
            check_start(job)
        data_sizes(job.kind, job.cfg)
    except UserError as error:
        return f"{run.experiment} is skipped: {error}"
    try:
        if job.state in (State.FINISHED, State.DAMAGED):
            check_finished(job)
    except UserError as error:
        return f"{run}: {error}"
    return None


def execute_or_wait(job: Job) -> str | None:
    """Executes a run, or waits while another process executes it; returns its error message, or None."""
    try:
        check(job)
        while not job.stop.is_set():
            state = job.state
            if state == State.FINISHED:
                break
            with suppress(InUse):  # another process may lock it after its state was read
                if state != State.RUNNING:
                    execute_run(job)
                    break
            job.stop.wait(POLL_SECONDS)
    except (UserError, OSError, CommandFailed) as error:
        return str(error)
    except Exception:  # a bug must not stop the other runs
        return traceback.format_exc()
    return None


class Scheduler:
    """Scheduler that executes unfinished runs in threads, each after the runs that it needs.

    A thread waits for a run that another process executes. If a run fails, only the runs that need it are not
    started.

    Args:
        jobs: the runs, each after those that it needs.
        count: the maximum number of runs at a time.
        gpus: the number of GPUs of each run.
    """

    def __init__(self, jobs: dict[Run, Job], count: int, gpus: int | None):
        self.jobs = jobs
        self.count = count
        self.gpus = gpus
        self.slots = list(range(count))  # the free shares of the machine
        runs = [run for run, job in jobs.items() if job.state != State.FINISHED]
        self.priority = {run: number for number, run in enumerate(runs)}
        self.needs = {run: self.priority.keys() & jobs[run].experiment.needs(run) for run in runs}
        self.order = TopologicalSorter(self.needs)
        self.ready: list[Run] = []
        self.errors: list[str] = []
        self.running: dict[Future, tuple[Run, int]] = {}
        self.failed: dict[Run, Run] = {}  # {run that failed or was not started: the run that failed}
        self.stop = threading.Event()
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.display = Progress(*columns, console=Console(highlight=False, markup=False, soft_wrap=True))
        self.say = self.display.console.print
        self.bar = self.display.add_task("", total=len(jobs), completed=len(jobs) - len(runs))

    def execute_all(self) -> list[str]:
        """Executes the runs and returns the error messages of the runs that failed."""
        self.order.prepare()
        if self.order.is_active():
            # Threads would import it at the same time, which its circular imports do not support.
            import fairseq_lrpe.fairseq_ext.fairseq_import  # noqa: F401  (this import takes seconds)
        reported = time.monotonic()
        with self.display, ThreadPoolExecutor(self.count) as pool:
            try:
                while self.order.is_active():
                    self.ready = sorted([*self.ready, *self.order.get_ready()], key=self.priority.get)
                    while self.ready and self.slots:
                        self.start(pool)
                    self.finish_ended()
                    if time.monotonic() - reported >= progress.REPORT_INTERVAL:
                        reported = time.monotonic()
                        self.report()
            finally:
                self.stop.set()
        return self.errors

    def finish_ended(self) -> None:
        """Waits at most ``POLL_SECONDS`` for running runs, and finishes those that have ended."""
        for future in wait(self.running, POLL_SECONDS, FIRST_COMPLETED).done:
            run, slot = self.running.pop(future)
            self.slots.append(slot)
            self.finish(run, future.result(), run)

    def report(self) -> None:
        for run, _ in self.running.values():
            self.say(progress.describe_job(self.jobs[run]))

    def start(self, pool: ThreadPoolExecutor) -> None:
        """Starts a ready run, preferably one that is not in use; fails it if a run that it needs failed."""
        free = [run for run in self.ready if self.jobs[run].state != State.RUNNING]
        run = free[0] if free else self.ready[0]
        self.ready.remove(run)
        causes = [self.failed[needed] for needed in self.needs[run] if needed in self.failed]
        if causes:
            self.finish(run, f"not started: {causes[0]} failed", causes[0])
            return
        self.say(f"started  {run}" if free else f"waiting  {run}: in use by another process")
        slot = self.slots.pop(0)
        share = share_of_machine(slot, self.count, self.gpus)
        job = replace(self.jobs[run], environment=share, stop=self.stop)
        self.running[pool.submit(execute_or_wait, job)] = (run, slot)

    def finish(self, run: Run, error: str | None, cause: Run) -> None:
        """Shows and records that a run has ended.

        Args:
            run: the run.
            error: its error message, or None.
            cause: the run that failed first: ``run`` itself, or a run that it needs.
        """
        if error is None:
            self.say(f"finished {run}")
        else:
            self.errors.append(f"{run}: {error}")
            self.failed[run] = cause
            self.say(f"FAILED   {run}: {error.splitlines()[-1]}")
        self.order.done(run)
        self.display.advance(self.bar)
        running = ", ".join(str(other) for other, _ in self.running.values())
        self.display.update(self.bar, description=running)
