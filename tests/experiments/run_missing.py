"""Runs and records what docs/results lacks of a table at scale mini.

    python tests/experiments/run_missing.py TABLE

Commands run as forks of a process that has imported fairseq, which saves about ten seconds per run without
changing the numbers. The script can be interrupted at any time; finished runs are recorded, and the next
call resumes the others. Runs from which missing ones start, such as a pretraining, are repeated unless they
are in the results folder.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from forks import Forks

from fairseq_lrpe.experiments.execution import scheduler
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.reporting.recording import record
from fairseq_lrpe.experiments.reporting.records import read_recorded
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.experiments.spec.table import Table, TableSpec, tables
from fairseq_lrpe.utils.cli import exit_on_error, min_int
from fairseq_lrpe.utils.files import REPOSITORY
from fairseq_lrpe.utils.subprocesses import KEEP_MEMORY

RECORDS = REPOSITORY / "docs/results"


def missing(table: Table, recorded: set[Run]) -> list[Run]:
    """Returns the runs of a table that are not recorded, after the runs that they need."""
    found = {}

    def add(run):
        if run not in found:
            for needed in table.experiment_of(run).needs(run):
                add(needed)
            found[run] = None

    for cell in table.cells:
        for run in cell.runs:
            if run not in recorded:
                add(run)
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    text = "tables to run; without any, the number of missing trainings of each table is printed"
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=text)
    text = "number of runs at a time, each on one core"
    parser.add_argument("--jobs", type=min_int(1), default=1, help=text)
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", help="folder of the runs")
    args = parser.parse_args()
    with exit_on_error("run_missing"):
        recorded = {one.run for one in read_recorded(RECORDS) if one.problem is None}
        if args.tables:
            wanted = [Table(name, "mini") for name in args.tables]
            execute(wanted, recorded, args.jobs, args.results)
            return
        for name in tables():
            if TableSpec(name).outline("mini"):
                print(f"{name}: {len(missing(Table(name, 'mini'), recorded))} trainings")


def execute(wanted: list[Table], recorded: set[Run], count: int, results: Path) -> None:
    """Executes the missing runs of tables, ``count`` at a time, and records all finished runs."""
    os.environ.update(KEEP_MEMORY, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    forks = Forks()
    sys.executable = str(forks.bin / "python")
    try:
        for table in wanted:
            jobs = {run: Job(table.experiment_of(run), run, results) for run in missing(table, recorded)}
            jobs, messages = scheduler.jobs_with_data(jobs, gpus=0) if jobs else ({}, [])
            launcher = scheduler.LocalLauncher(count, 0)
            messages += scheduler.execute_runs(jobs, launcher, ["--cpu", "--results", str(results)])
            for message in messages:
                print(message, file=sys.stderr)
    finally:
        forks.close()
        if results.is_dir():
            for message in record(results, RECORDS)[1]:
                print(f"not recorded: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
