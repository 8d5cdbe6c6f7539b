"""Does a table's runs that are not done yet, then shows it beside the paper's; without one, lists all.

configs/tables/TABLE.yaml says which runs. KEY=VALUE changes a value of every experiment in it. Runs that
were finished are not repeated, and interrupted ones continue.
"""

import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from fairseq_lrpe.commands import ending_with_this
from fairseq_lrpe.experiments import entries, results, train, watch
from fairseq_lrpe.experiments.experiment import is_free, own
from fairseq_lrpe.experiments.launch import add_results_flag, update_freq, visible_gpus
from fairseq_lrpe.experiments.run import Run
from fairseq_lrpe.experiments.runner import Job, finished, lost, sizes
from fairseq_lrpe.experiments.table import SCALES, NoSmallForm, Table, tables
from fairseq_lrpe.files import new_folder
from fairseq_lrpe.programs import at_least, one_sentence, picture, show_wide


def main(arguments=None):
    args, overrides = train.parse(parser(), arguments)
    with one_sentence("table"):
        if args.table is None:
            return show_tables(args.results)
        table = Table(args.table, args.scale, overrides)
        planned = table.runs(args.only)
        gpus = gpus_per_job(args)
        flags = ["--results", str(args.results), *([] if gpus is None else ["--gpus", str(gpus)])]
        if args.dry_run:
            jobs = [Job(table.experiment_of(run), run, args.results) for run in planned]
            for job in (job for job in jobs if not job.trials()):
                if job.starts_from and not job.starts_from.exists():
                    print(f"# {job.run}: its command is known when {job.starts_from} is there")
                else:
                    train.main([*arguments_of(table, job.run, args.results), *flags, "--dry-run"])
            return
        with new_folder(args.results):
            ready, failed = with_data(table, planned, gpus)
            failed += run_all(table, ready, args, flags, gpus)
            results.show(table, found := entries.read(table, args.results))
            if args.plot and not failed:
                results.plot_table(table, found, args.plot)
    if failed:
        sys.exit("\n".join(["table: not everything is done:", *failed]))


def parser() -> ArgumentParser:
    parser = train.new_parser("table.sh", __doc__, "[TABLE] [options] [KEY=VALUE ...]")
    parser.add_argument("table", nargs="?", help="a file in configs/tables")
    parser.add_argument("--scale", choices=SCALES, default="full", help="default: the paper's, full")
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="these methods alone")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--gpus", type=at_least(0), help="for each job; default: all here, shared out")
    add_results_flag(parser)
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="the validations, a picture")
    parser.add_argument("--dry-run", action="store_true", help="print every run's command and run nothing")
    return parser


def show_tables(folder: Path) -> None:
    """Prints every table: its title, how much of it is done at either scale."""
    shown = RichTable("table", "title", "done", "done of the small form")
    for name in tables():
        cells = []
        for scale in SCALES:
            try:
                table = Table(name, scale)
            except NoSmallForm:
                cells.append("-")
                continue
            done = [is_done(table, run, folder) for run in table.runs()]
            cells.append(f"{sum(done)} of {len(done)} runs")
        shown.add_row(name, table.settings.title, *cells)
    show_wide(shown)


def is_done(table: Table, run: Run, folder: Path) -> bool:
    """Whether all that is asked of one of the table's runs is on record, or it is a trial that lost."""
    experiment = table.experiment_of(run)
    job, is_trial = Job(experiment, run, folder), bool(experiment.cfg.choose) and not experiment.trials(run)
    return job.folder.is_dir() and (finished(job) or (is_trial and lost(job)))


def gpus_per_job(args: Namespace) -> int | None:
    """Returns what every run is told of --gpus; None leaves it to the run."""
    here = len(visible_gpus())
    if args.gpus is None and here:
        if here < args.jobs:
            raise ValueError(f"--jobs {args.jobs}: this machine has {here} GPUs, one job needs one")
        return here // args.jobs
    if here and args.gpus * args.jobs > here and not args.dry_run:
        raise ValueError(f"--jobs {args.jobs} with --gpus {args.gpus} each: this machine has {here}")
    return args.gpus


def with_data(table: Table, planned: Iterable[Run], gpus: int | None) -> tuple[list[Run], list[str]]:
    """Returns the runs whose data is there, and what is to be said of the others."""
    lacking, ready = {}, []
    for run in planned:
        experiment = table.experiment_of(run)
        cfg = experiment.settings(run)
        update_freq(cfg.batch, gpus or 0)
        try:
            sizes(experiment.kind, cfg)
            ready.append(run)
        except ValueError as error:
            lacking[f"{run.experiment} left out: {error}"] = None
    if not ready:
        raise ValueError("; ".join(lacking))
    for sentence in lacking:
        print(f"table: {sentence}", file=sys.stderr)
    return ready, list(lacking)


def arguments_of(table: Table, run: Run, folder: Path) -> list[str]:
    """Returns what scripts/train.sh takes to do one of the table's runs."""
    words = [run.experiment, run.method, "--attention", run.attention, "--seed", str(run.seed)]
    free = [text for text in own(run.experiment, table.overrides) if is_free(text.partition("=")[0])]
    first = Job(table.experiment_of(run), run, folder).starts_from
    free += [f"starts_from={first}"] if first else []
    return [*words, *(f"{key}={value}" for key, value in run.changes), *free]


def environment(slot: int, jobs: int, gpus: int | None) -> dict[str, str]:
    """Returns a job's environment, which has its share of the machine's cores or GPUs.

    Of cores that other work shares, a person's own OMP_NUM_THREADS says how many: threads that wait for one
    another on a busy core take several times as long.
    """
    ours = visible_gpus()[slot * (gpus or 0) : (slot + 1) * (gpus or 0)]
    if ours:
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(ours)}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // jobs)), **os.environ}


def run_all(
    table: Table, planned: list[Run], args: Namespace, flags: list[str], gpus: int | None
) -> list[str]:
    """Does the runs, ``args.jobs`` at a time; returns what is to be said of those that failed."""
    waiting = [run for run in planned if not is_done(table, run, args.results)]
    needs = {run: set(table.experiment_of(run).needs(run)) for run in waiting}
    running, failed, told = {}, [], time.monotonic()  # {slot: (run, process)}
    console = Console(highlight=False, soft_wrap=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(planned), completed=len(planned) - len(waiting))
        try:
            while waiting or running:
                for slot in range(args.jobs):
                    unfinished = {*waiting, *(run for run, _ in running.values())}
                    ready = [run for run in waiting if not unfinished & needs[run]]
                    if slot not in running and ready:
                        run = ready[0]
                        waiting.remove(run)
                        console.print(f"started  {run}")
                        words = [*arguments_of(table, run, args.results), *flags]
                        running[slot] = run, start(words, environment(slot, args.jobs, gpus))
                    if slot in running and running[slot][1].poll() is not None:
                        run, process = running.pop(slot)
                        if process.returncode:
                            failed.append(f"{run}: {process.stderr.read().strip()}")
                        console.print(f"{'FAILED  ' if process.returncode else 'finished'} {run}")
                        progress.advance(bar)
                if time.monotonic() - told >= watch.EVERY:
                    told = time.monotonic()
                    for run, _ in running.values():
                        console.print(watch.standing(Job(table.experiment_of(run), run, args.results)))
                progress.update(bar, description=", ".join(str(run) for run, _ in running.values()))
                time.sleep(0.3)
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait()
    return failed


def start(words: list[str], env: dict[str, str]) -> subprocess.Popen:
    """Starts one run in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fairseq_lrpe.experiments.train", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,  # Ctrl-C reaches this program alone, which ends them
        preexec_fn=ending_with_this(),
    )


if __name__ == "__main__":
    main()
