"""Do all runs of a paper's table that are not done yet, then show it beside the paper's.

configs/tables/TABLE.yaml says which runs. KEY=VALUE overrides a value of every experiment in it. Runs that
were finished are not repeated, and interrupted ones continue.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairseq_lrpe.experiments import compose, finetune, glue, train
from fairseq_lrpe.commands import ending_signals
from fairseq_lrpe.experiments.compose import REPOSITORY
from fairseq_lrpe.experiments.train import OVERRIDE, at_least
from fairseq_lrpe.methods import METHODS

SCALES = ("full", "mini")


@dataclass(frozen=True)
class Run:
    """A training; with a ``task`` a fine-tuning, after the training ``pretrained``."""

    experiment: str
    attention: str
    method: str
    seed: int
    task: str | None = None
    pretrained: "Run | None" = None

    def __str__(self):
        return "/".join(
            filter(None, (self.experiment, f"{self.attention}_{self.method}", f"seed-{self.seed}", self.task))
        )


def folder_of(run, results):
    """Its folder: that of the first of its method's namesakes that has one, or the one it will have."""
    folders = [results / str(replace(run, method=name)) for name in compose.namesakes(run.method)]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def load(name):
    path = compose.CONFIGS / "tables" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml")))
        raise ValueError(f"no table {name!r} in configs/tables: choose from {known}")
    return OmegaConf.to_container(OmegaConf.load(path))


def experiment_of(part, scale):
    """The experiment of one entry of a table's ``runs``; None if it has no small form."""
    return part["mini"] if scale == "mini" else part["experiment"]


def seeds_of(table, scale, cfg):
    return table.get("mini_seeds" if scale == "mini" else "seeds") or list(cfg.seeds)


def tasks_of(cfg, part):
    """Of a fine-tuning, those of its tasks that an entry of a table's ``runs`` has columns for."""
    shown = {glue.task_of(split).name for split in part["columns"]} if cfg.family == "glue" else ()
    return [task for task in cfg.get("tasks", ()) if task in shown]


def plan(cfg, experiment, attention, method, seeds, tasks):
    """The runs of one method in one experiment; of a fine-tuning, one for each of ``tasks``."""
    method = compose.canonical(method)
    if cfg.family != "glue":
        return [Run(experiment, attention, method, seed) for seed in seeds]
    first = Run(cfg.pretrained, attention, method, compose.load(cfg.pretrained).seeds[0])
    return [Run(experiment, attention, method, seed, task, first) for seed in seeds for task in tasks]


def own(experiment, overrides):
    """Those of the overrides that the experiment has a key for."""
    cfg = compose.load(experiment)
    return [text for text in overrides if OmegaConf.select(cfg, text.partition("=")[0]) is not None]


def runs(table, scale="full", only=(), overrides=()):
    """The table's runs, each once, all methods of the first seed first, and pretraining before all else.

    An override has to fit one of the experiments.
    """
    names = list(dict.fromkeys(filter(None, (experiment_of(part, scale) for part in table["runs"]))))
    for text in overrides:
        if not any(own(name, [text]) for name in names):
            compose.load(names[0], [text])  # tells what is wrong
    found, seen = {}, set()
    for part in table["runs"]:
        experiment = experiment_of(part, scale)
        if experiment is None:
            continue
        cfg = compose.load(experiment, own(experiment, overrides))
        seeds = seeds_of(table, scale, cfg)
        for method in part["methods"].values():
            compose.check_method(method, part["attention"])
            first = compose.canonical(method)
            seen |= {method, first}
            if not only or {method, first} & set(only):
                tasks = tasks_of(cfg, part)
                found.update(dict.fromkeys(plan(cfg, experiment, part["attention"], method, seeds, tasks)))
    unknown = [name for name in only if name not in seen]
    if unknown:
        known = ", ".join(name for name in (*METHODS, "fairseq") if name in seen)
        raise ValueError(f"the table has no method {unknown[0]!r}: choose from {known}")
    return sorted(found, key=lambda run: (run.pretrained is not None, run.seed))


def main(arguments=None):
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    overrides = [a for a in arguments if OVERRIDE.match(a)]
    args = parse([a for a in arguments if not OVERRIDE.match(a)])
    try:
        planned = runs(load(args.table), args.scale, args.only, overrides)
        gpus = gpus_per_job(args)
        flags = ["--results", str(args.results), *([] if gpus is None else ["--gpus", str(gpus)])]
        if args.dry_run:
            for run in planned:
                _, *words = arguments_of(run, args.results, overrides)
                (finetune if run.task else train).main([*words, *flags, "--dry-run"])
            return
        ready, failed = with_data(planned, overrides, gpus)
    except ValueError as error:
        sys.exit(f"table: {error}")
    try:
        with ending_signals():
            failed += run_all(ready, args, overrides, flags, gpus)
    except KeyboardInterrupt:
        sys.exit(130)
    if importlib.util.find_spec("fairseq_lrpe.experiments.results"):
        show = [sys.executable, "-m", "fairseq_lrpe.experiments.results", str(args.results)]
        scale = ["--scale", "mini"] if args.scale == "mini" else []
        subprocess.run([*show, "--table", args.table, *scale], check=False)
    if failed:
        sys.exit("\n".join(["table: not everything is done:", *failed]))


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="table",
        description=__doc__,
        usage="%(prog)s TABLE [options] [KEY=VALUE ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", help="a file in configs/tables")
    parser.add_argument("--scale", choices=SCALES, default="full", help="default: the paper's, full")
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="these methods alone")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--gpus", type=at_least(0), help="for each job; default: all here, shared out")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", help="default: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="print every run's command and run nothing")
    args = parser.parse_args(arguments)
    args.results = args.results.absolute()
    return args


def gpus_per_job(args):
    """What every run is told of --gpus; None leaves it to the run."""
    here = len(visible_gpus())
    if args.gpus is None and here:
        if here < args.jobs:
            raise ValueError(f"--jobs {args.jobs}: this machine has {here} GPUs, one job needs one")
        return here // args.jobs
    if here and args.gpus * args.jobs > here and not args.dry_run:
        raise ValueError(f"--jobs {args.jobs} with --gpus {args.gpus} each: this machine has {here}")
    return args.gpus


def visible_gpus():
    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def with_data(planned, overrides, gpus):
    """The runs whose data is there, and what is to be said of the others."""
    lacking = {}
    for experiment in dict.fromkeys(run.experiment for run in planned):
        cfg = compose.load(experiment, own(experiment, overrides))
        compose.update_freq(cfg, gpus or 0)
        try:
            if cfg.family == "glue":
                finetune.check_settings(cfg, experiment)
                for task in {run.task: None for run in planned if run.experiment == experiment}:
                    finetune.data_of(cfg, glue.TASKS[task])
            else:
                train.sizes(cfg)
        except ValueError as error:
            lacking[experiment] = f"{experiment} left out: {error}"
    ready = [run for run in planned if run.experiment not in lacking]
    if not ready:
        raise ValueError("; ".join(lacking.values()))
    for sentence in lacking.values():
        print(f"table: {sentence}", file=sys.stderr)
    return ready, list(lacking.values())


def arguments_of(run, results, overrides):
    """The module of experiments that does it, and its arguments."""
    if run.task:
        checkpoint = folder_of(run.pretrained, results) / "checkpoints" / "checkpoint_best.pt"
        words = "finetune", checkpoint, run.task, "--experiment", run.experiment, "--seeds", run.seed
    else:
        words = "train", run.experiment, run.method, "--attention", run.attention, "--seed", run.seed
    return [*map(str, words), *own(run.experiment, overrides)]


def environment(slot, jobs, gpus):
    """Each job has its share of the machine's cores or GPUs."""
    ours = visible_gpus()[slot * (gpus or 0) : (slot + 1) * (gpus or 0)]
    if ours:
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(ours)}
    return {**os.environ, "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // jobs))}


def run_all(planned, args, overrides, flags, gpus):
    """Do the runs, ``args.jobs`` at a time; return what is to be said of those that failed."""
    waiting = [run for run in planned if not (folder_of(run, args.results) / "evaluation.json").exists()]
    running, failed = {}, []  # {slot: (run, process)}
    console = Console(highlight=False, soft_wrap=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(planned), completed=len(planned) - len(waiting))
        try:
            while waiting or running:
                for slot in range(args.jobs):
                    unfinished = {*waiting, *(run for run, _ in running.values())}
                    ready = [run for run in waiting if run.pretrained not in unfinished]
                    if slot not in running and ready:
                        run = ready[0]
                        waiting.remove(run)
                        console.print(f"started  {run}")
                        job = arguments_of(run, args.results, overrides)
                        running[slot] = run, start(*job, *flags, env=environment(slot, args.jobs, gpus))
                    if slot in running and running[slot][1].poll() is not None:
                        run, process = running.pop(slot)
                        if process.returncode:
                            failed.append(f"{run}: {process.stderr.read().strip()}")
                        console.print(f"{'FAILED  ' if process.returncode else 'finished'} {run}")
                        progress.advance(bar)
                progress.update(bar, description=", ".join(str(run) for run, _ in running.values()))
                time.sleep(0.3)
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait()
    return failed


def start(module, *arguments, env):
    return subprocess.Popen(
        [sys.executable, "-m", f"fairseq_lrpe.experiments.{module}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,  # Ctrl-C reaches this program alone, which ends them
    )


if __name__ == "__main__":
    main()
