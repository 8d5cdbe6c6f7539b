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
from fairseq_lrpe.experiments.reporting.recorded import read_recorded
from fairseq_lrpe.experiments.reporting.recording import record
from fairseq_lrpe.experiments.spec.run import Run
from fairseq_lrpe.experiments.spec.table import Table, TableSpec, tables
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
    parser.add_argument("tables", nargs="*", choices=[[], *tables()], metavar="TABLE", help=text)
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time, each on one core")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", help="folder of the runs")
    parser.add_argument("--seeds", help="instead of the table's, such as [1]")
    args = parser.parse_args()
    overrides = [f"seeds={args.seeds}"] if args.seeds else []
    recorded = {one.run for one in read_recorded(RECORDS) if one.problem is None}
    if not args.tables:
        for name in tables():
            if TableSpec(name).outline("mini"):
                print(f"{name}: {len(missing(Table(name, 'mini', overrides), recorded))} trainings")
        return
    os.environ.update(KEEP_MEMORY, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    forks = Forks()
    sys.executable = str(forks.bin / "python")
    try:
        for name in args.tables:
            table = Table(name, "mini", overrides)
            jobs = {run: Job(table.experiment_of(run), run, args.results) for run in missing(table, recorded)}
            jobs, messages = scheduler.jobs_with_data(jobs, gpus=0) if jobs else ({}, [])
            launcher = scheduler.LocalLauncher(args.jobs, 0)
            messages += scheduler.execute_runs(jobs, launcher, ["--cpu", "--results", str(args.results)])
            print(*messages, sep="\n", file=sys.stderr)
    finally:
        forks.close()
        print("\n".join(record(args.results, RECORDS)[1]))


if __name__ == "__main__":
    main()
