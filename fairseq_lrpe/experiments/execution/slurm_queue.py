"""The states of runs on a cluster, according to SLURM's queue and the folders of the runs."""

import os
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from fairseq_lrpe.experiments.definition.run import Run
from fairseq_lrpe.experiments.execution.job import Job, State
from fairseq_lrpe.experiments.execution.sbatch import FOLDER, clean_environment
from fairseq_lrpe.utils.cli import print_wide
from fairseq_lrpe.utils.errors import UserError

RETRIES = 60  # slurmctld may restart
POLL_SECONDS = 5
NAMES = {State.ABSENT: "not submitted"}
"""{state: name under which it is shown on a cluster}, for states whose value is not shown."""


@dataclass
class Status:
    """The state of a run on the cluster.

    Args:
        number: the id of the last submitted job, or "-".
        state: the state of the run.
        text: the state and its reason, as shown to the user.
    """

    number: str
    state: State
    text: str


def squeue() -> list[str]:
    """Returns a line ID|STATE|NODE|REASON|COMMENT for each of this user's jobs."""
    command = ["squeue", f"--user={os.getuid()}", "--noheader", "--format=%i|%T|%N|%r|%k"]
    for _ in range(RETRIES):
        with clean_environment():
            done = subprocess.run(command, capture_output=True, text=True)
        if not done.returncode:
            return done.stdout.splitlines()
        time.sleep(POLL_SECONDS)
    raise UserError(f"squeue failed: {done.stderr.strip()}")


def queue(jobs: dict[Run, Job]) -> dict[Run, Status]:
    """Returns {run: status} of the unfinished runs that have a pending or running job."""
    # Another command may have used another path of the results folder.
    runs = {os.path.realpath(job.folder): run for run, job in jobs.items()}
    queued = {}
    for line in squeue():
        number, slurm_state, node, reason, comment = line.split("|", 4)
        run = runs.get(os.path.realpath(comment))
        if run is None or jobs[run].state == State.FINISHED:
            continue
        if slurm_state == "PENDING":
            queued[run] = Status(number, State.QUEUED, f"queued ({reason})")
        else:
            queued[run] = Status(number, State.RUNNING, f"{slurm_state.lower()} on {node}")
    return queued


def ended_status(job: Job) -> Status:
    """Returns the status of a run that is not queued; for a failed run, it includes the log's last line."""
    number = last_number(job)
    state = job.state
    if state in (State.FINISHED, State.RUNNING):
        return Status(number, state, state)
    if state == State.DAMAGED:
        return _failed(number, f"{job.folder / 'evaluation.json'} is damaged: restore or remove it")
    line = last_line(job, number)
    if line:
        return _failed(number, line)
    if number != "-":
        return _failed(number, "cancelled before it started")
    return Status(number, State.ABSENT, NAMES[State.ABSENT])


def _failed(number, reason):
    return Status(number, State.FAILED, f"{State.FAILED}: {reason}")


def last_number(job: Job) -> str:
    """Returns the id of the last job that was submitted for a run, or "-"."""
    submitted = [int(path.name.split("_")[0]) for path in (job.folder / FOLDER).glob("*_submitted.pkl")]
    return str(max(submitted, default="-"))


def last_line(job: Job, number: str) -> str | None:
    """Returns the last line in the logs of a run and of its job ``number``, with the log's path, or None."""
    last = None
    logs = [*job.folder.glob("*.log"), *(job.folder / FOLDER).glob(f"{number}_*_log.*")]
    for path in sorted(logs, key=lambda path: path.stat().st_mtime):
        for line in path.read_text("utf-8", "replace").splitlines():
            if line.strip() and not line.startswith(("srun: ", "submitit ")):
                last = f"{line} ({path})"
    return last


def print_status(jobs: dict[Run, Job]) -> None:
    """Prints a table with the state of each run, and the number of runs in each state."""
    queued = queue(jobs) if shutil.which("squeue") else {}
    listing = Table("run", "job", "state")
    counts = Counter()
    for run, job in jobs.items():
        status = queued.get(run) or ended_status(job)
        color = "red" if status.state == State.FAILED else ""
        listing.add_row(str(run), status.number, Text(status.text, color))
        counts[status.state] += 1
    print_wide(listing)
    print(", ".join(f"{count} {NAMES.get(state, state)}" for state, count in counts.items()))
