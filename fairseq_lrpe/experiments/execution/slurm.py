"""Execution of runs on a SLURM cluster, with submitit.

Each run is one job, and the job's comment is the run's folder, so squeue alone shows which runs are queued or
running. The results folder must be on a file system that the nodes share. RUN/slurm contains submitit's files
and the output of the jobs.
"""

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from fairseq_lrpe.experiments.execution.run_directory import is_locked, locked
from fairseq_lrpe.experiments.execution.runner import Job
from fairseq_lrpe.experiments.execution.scheduler import is_complete
from fairseq_lrpe.experiments.spec.experiment import read_yaml
from fairseq_lrpe.experiments.spec.run import Run, as_value
from fairseq_lrpe.utils.files import REPOSITORY

FOLDER = "slurm"
"""The folder in a run's folder with submitit's files."""
DEFAULTS = {"time": "24:00:00", "signal": "USR2@120", "requeue": True, "kill-on-invalid-dep": "yes"}
"""Options of sbatch that configs/cluster.yaml and --slurm override. ``signal`` precedes the time limit."""
RESERVED = ("comment", "dependency", "nodes", "ntasks-per-node", "gpus-per-node", "output", "error", "array")
"""Options of sbatch that this module sets."""
PYTHON = sys.executable  # the interpreter of the jobs, which the nodes have, too
CPUS_PER_GPU = 4  # for reading data
MAX_REQUEUES = 1000  # after time limits, before submitit gives up
UNREACHABLE = re.compile(r"Unable to contact slurm controller|Socket timed out|Connection refused")
RETRY_SECONDS, RETRIES = 5, 60  # while slurmctld restarts
LOCK_TIMEOUT = 600  # seconds for another command that submits runs to the same results folder
POLL_SECONDS = 5


@dataclass
class SlurmRun:
    """What a job executes on each of its nodes: ``lrpe train`` with these arguments.

    submitit pickles it, and calls ``checkpoint`` before it requeues the job at a time limit or preemption.
    """

    arguments: list[str]
    nodes: int = 1
    process: subprocess.Popen | None = field(default=None, init=False)

    def __call__(self) -> None:
        rendezvous = []
        if self.nodes > 1:  # each job has its own port, because two jobs may share the first node
            port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
            rendezvous = ["--rendezvous", f"{os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{port}"]
        command = [sys.executable, "-m", "fairseq_lrpe", "train", *self.arguments]
        split = command.index("--") if "--" in command else len(command)
        command = [*command[:split], *rendezvous, *command[split:]]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        # Popen.wait() would hold a lock that `checkpoint`, called by a signal handler, also needs.
        while (code := self.process.poll()) is None:
            time.sleep(0.2)
        if code:
            sys.exit(code)  # without a traceback: the last line of the output is the command's error

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Waits until the training has saved a checkpoint, and returns what the requeued job executes."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            while self.process.poll() is None:
                time.sleep(0.2)
        return submitit.helpers.DelayedSubmission(SlurmRun(self.arguments, self.nodes))


@dataclass(frozen=True)
class QueuedJob:
    """A job that squeue lists: its id, state (such as PENDING), node and the reason why it is pending."""

    id: str
    state: str
    node: str
    reason: str

    def __str__(self) -> str:
        if self.state == "PENDING":
            return f"queued ({self.reason})"
        return f"{self.state.lower()} on {self.node}" if self.node else self.state.lower()


@dataclass
class SlurmLauncher:
    """Submits runs as jobs.

    Args:
        options: "KEY=VALUE" options of sbatch.
        nodes: the number of nodes of each job.
        gpus: the number of GPUs of each node; None requests none.
        max_jobs: the number of jobs of these runs that may be in the queue at a time.
    """

    options: Iterable[str] = ()
    nodes: int = 1
    gpus: int | None = None
    max_jobs: int | None = None

    def sbatch_options(self) -> dict[str, object]:
        """Returns sbatch's options from configs/cluster.yaml and --slurm; ValueError if one is invalid."""
        path = REPOSITORY / "configs/cluster.yaml"
        found = {
            **DEFAULTS,
            **({str(key): value for key, value in read_yaml(path).items()} if path.is_file() else {}),
        }
        for text in self.options:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise ValueError(f"--slurm {text}: must be KEY=VALUE, such as partition=gpu")
            found[key] = as_value(value) if value in ("true", "false") else value
        found = {key.replace("_", "-"): value for key, value in found.items()}
        minutes(found["time"])
        for key in RESERVED:
            if key in found:
                raise ValueError(f"--slurm {key}: lrpe sets this option of sbatch itself")
        if self.gpus:
            found["gpus-per-node"] = self.gpus
        if not any(key.startswith("cpus-per") for key in found):
            found["cpus-per-task"] = max(1, CPUS_PER_GPU * (self.gpus or 0))
        return {key: value for key, value in found.items() if value is not False}

    def submit(
        self,
        jobs: dict[Run, Job],
        arguments: dict[Run, list[str]],
        results: Path,
        failed: Iterable[Run] = (),
    ) -> tuple[list[Run], int]:
        """Submits the runs that are neither finished nor in the queue, each after those it needs.

        Args:
            jobs: the runs, each after those it needs.
            arguments: the arguments of ``lrpe train`` for each.
            failed: runs that are not submitted, and neither are the runs that need them.

        Returns:
            The submitted runs, and how many wait because of ``max_jobs`` or for a run on this machine.

        Raises:
            ValueError: if SLURM rejects a job. The jobs that this call submitted are then cancelled.
        """
        options, submitted, waiting, failed = self.sbatch_options(), {}, 0, set(failed)
        with locked(results, LOCK_TIMEOUT):
            queued = {run: job.id for run, job in queue(jobs).items()}
            for run, number in queued.items():
                complete_submission(jobs[run].folder / FOLDER, number)
            try:
                for run, job in jobs.items():
                    if run in queued or run in failed or is_complete(job) or is_locked(job.folder):
                        continue
                    needs = [other for other in job.experiment.needs(run) if other in jobs]
                    missing = {
                        other for other in needs if other not in queued and not is_complete(jobs[other])
                    }
                    if missing & failed:
                        failed.add(run)
                    elif missing or (self.max_jobs is not None and len(queued) >= self.max_jobs):
                        waiting += 1
                    else:
                        after = [queued[other] for other in needs if other in queued]
                        queued[run] = submitted[run] = self._submit(job, arguments[run], options, after)
            except BaseException:
                cancel(submitted.values())
                raise
        return list(submitted), waiting

    def _submit(self, job: Job, arguments: list[str], options: dict[str, object], after: list[str]) -> str:
        """Submits one run, which starts after the jobs with the ids ``after``; returns the id of its job."""
        executor = submitit.SlurmExecutor(
            job.folder / FOLDER, max_num_timeout=MAX_REQUEUES, python=shlex.quote(PYTHON)
        )
        dependency = {"dependency": f"afterok:{':'.join(after)}"} if after else {}
        executor.update_parameters(
            job_name=f"lrpe {job.run}",
            time=minutes(options["time"]),
            nodes=self.nodes,
            ntasks_per_node=1,
            additional_parameters={**options, "comment": str(job.folder), **dependency},
        )
        nodes = ["--nodes", str(self.nodes)] if self.nodes > 1 else []
        split = arguments.index("--") if "--" in arguments else len(arguments)
        function = SlurmRun([*arguments[:split], *nodes, *arguments[split:]], self.nodes)
        for _ in range(RETRIES):
            try:
                with redirect_stderr(io.StringIO()):  # submitit prints what it also raises
                    return executor.submit(function).job_id
            except (FailedJobError, FailedSubmissionError) as error:
                message = sbatch_error(str(error))
            if not UNREACHABLE.search(message):
                break
            time.sleep(RETRY_SECONDS)
            # The controller may have accepted the job before the connection failed.
            if found := queue({job.run: job}).get(job.run):
                complete_submission(job.folder / FOLDER, found.id)
                return found.id
        discard_submission(job.folder / FOLDER)
        raise ValueError(f"sbatch failed for {job.run}: {message}")


def sbatch_error(text: str) -> str:
    """Returns the message of sbatch in submitit's error."""
    lines = re.findall(r"sbatch: (?:error: )?(.+)", text) or text.strip().splitlines()[-1:]
    return lines[-1].removeprefix("Batch job submission failed: ")


def complete_submission(folder: Path, number: str) -> None:
    """Renames submitit's file of a queued job if the submitting process was killed before doing so."""
    if not (folder / f"{number}_submitted.pkl").exists():
        for path in unsubmitted_files(folder, "*.pkl"):
            path.rename(folder / f"{number}_submitted.pkl")


def unsubmitted_files(folder: Path, pattern: str) -> list[Path]:
    """Returns submitit's files that do not yet begin with the id of an accepted job."""
    return [
        path for path in folder.glob(pattern) if not re.match(r"\d+_(submitted|result|submission)", path.name)
    ]


def discard_submission(folder: Path) -> None:
    """Removes what submitit wrote for a job that was not accepted, and the run's folder if it is new."""
    for path in [*unsubmitted_files(folder, "*.pkl"), *unsubmitted_files(folder, "*.sh")]:
        path.unlink()
    with suppress(OSError):  # the folder of another run
        for path in (folder, *folder.parents):
            path.rmdir()


def minutes(text: object) -> int:
    """Returns a time limit of SLURM, such as 90, 24:00:00 or 1-12, in minutes, rounded up."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(text))
    if not match:
        raise ValueError(f"time={text}: must be a time limit of SLURM, such as 24:00:00")
    days, *parts = match.groups()
    parts = [int(part) for part in parts if part is not None]
    if days is None:  # MINUTES, MINUTES:SECONDS or HOURS:MINUTES:SECONDS
        parts = [0, *parts] if len(parts) < 3 else parts
    hours, mins, seconds = [*parts, 0, 0][:3]
    return (int(days or 0) * 24 + hours) * 60 + mins + (seconds > 0)


def is_installed() -> bool:
    """Whether SLURM's commands are installed."""
    return shutil.which("sbatch") is not None


def check_commands() -> None:
    """Raises ValueError if SLURM's commands are not installed."""
    if not is_installed():
        raise ValueError("sbatch was not found: run this command on a login node of a SLURM cluster")


def slurm_command(*command: str) -> str:
    """Returns the output of a command of SLURM, which is repeated while the controller restarts."""
    for _ in range(RETRIES):
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.returncode:
            return done.stdout
        if not UNREACHABLE.search(done.stderr):
            break
        time.sleep(RETRY_SECONDS)
    raise ValueError(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1]}")


def queue(jobs: dict[Run, Job]) -> dict[Run, QueuedJob]:
    """Returns those of the runs that have a pending or running job."""
    runs, found = {str(job.folder): run for run, job in jobs.items()}, {}
    for line in slurm_command("squeue", "--me", "--noheader", "--format=%i|%T|%N|%r|%k").splitlines():
        number, state, node, reason, comment = line.split("|", 4)
        if comment in runs:
            found[runs[comment]] = QueuedJob(number, state, node, reason)
    return found


def cancel(ids: Iterable[str]) -> None:
    """Cancels jobs by their ids."""
    if ids := list(ids):
        slurm_command("scancel", *ids)


def last_job(folder: Path) -> str | None:
    """Returns the id of the last job that was submitted for the run in a folder, if any."""
    paths = (folder / FOLDER).glob("*_submitted.pkl")
    return str(max((int(path.name.split("_")[0]) for path in paths), default="")) or None


def failure(folder: Path) -> str:
    """Describes why the last job of a run failed: the last line of its newest log, and where the log is."""
    logs = [path for path in (*folder.glob("*.log"), *(folder / FOLDER).glob(f"{last_job(folder)}_*_log.*"))]
    for path in sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True):
        lines = path.read_text(errors="replace").splitlines()
        if lines := [line for line in lines if line.strip() and not line.startswith(("srun: ", "submitit "))]:
            return f"{lines[-1]} ({path})"
    return (
        f"no log in {folder / FOLDER}: it was cancelled before it started, or its node cannot see this folder"
    )
