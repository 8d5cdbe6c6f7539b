"""Runs fairseq's commands as subprocesses and logs their complete output."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.failure_cause import REJECTION, failure_cause, rejection
from fairseq_lrpe.utils.files import PLUGIN, REPOSITORY, named_write_errors
from fairseq_lrpe.utils.launchers import without_launchers

CLUSTER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that SLURM sends to all processes of a job before its time limit."""
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP, *CLUSTER_SIGNALS)
POLL_INTERVAL = 0.1  # seconds between two reads of a command's log
GRACE_PERIOD = 30  # seconds from SIGTERM to SIGKILL; torchrun has to stop its own workers first
# By default, glibc returns the memory of large freed tensors to the system. Page faults on later allocations
# then take a quarter of the training time on the CPU. With these settings, glibc keeps the memory.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
SETTINGS = {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore", "PYTHONUTF8": "1", "PYTHONOPTIMIZE": ""}
"""Variables of all commands. PYTHONOPTIMIZE would remove assertions, by which fairseq validates data."""

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


class CommandFailed(Exception):
    """Exception for a command that exits with a non-zero code or is stopped."""


class CommandRejected(CommandFailed):
    """Exception for a command of fairseq that rejects its arguments."""


def run_command(
    command: list[str],
    log: Path,
    on_line: Callable[[str], object] = lambda line: None,
    environment: dict[str, str] | None = None,
    stop: threading.Event | None = None,
    **popen,
) -> None:
    """Runs a command of this Python environment until it ends and appends its output to a log.

    The command writes to the log directly, so no output is lost if this process is killed. Any exception in
    this process terminates the command.

    Args:
        command: the program and its arguments.
        log: the file to which the output is appended.
        on_line: callback that receives each line of output.
        environment: environment variables besides those of this process.
        stop: event that terminates the command when it is set, for commands run in threads.
        **popen: further arguments of ``subprocess.Popen``.

    Raises:
        CommandFailed: if the exit code is not 0 (CommandRejected for invalid arguments), or ``stop`` was set.
    """
    folders = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
    program = sys.executable if command[0] == "python" else shutil.which(command[0], path=folders)
    if program is None:
        raise CommandFailed(f"{command[0]} was not found: install fairseq and torch for {sys.executable}")
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = without_launchers(os.environ)
    variables = {**KEEP_MEMORY, **inherited, **(environment or {}), **SETTINGS, **import_settings()}
    process = None
    with log.open("ab", buffering=0) as file, log.open("rb") as output:
        with named_write_errors(log):
            file.write(f"$ {' '.join(command)}\n".encode())
        start = output.seek(0, os.SEEK_END)
        popen |= {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT, "env": variables}
        popen |= {"start_new_session": True, "preexec_fn": die_with_parent()}
        try:
            with defer_signals():  # a signal between fork and assignment would orphan the command
                process = subprocess.Popen([program, *command[1:]], **popen)
            for line in _follow(process, output, stop):
                on_line(line)
        except BaseException as error:
            if process is not None:
                by_slurm = isinstance(error, SystemExit) and error.code in [128 + n for n in CLUSTER_SIGNALS]
                terminate_group(process, seconds_in_job() if by_slurm else GRACE_PERIOD)
            raise
    if process.returncode:
        raise failure(command, process.returncode, log, start)


def import_settings() -> dict[str, str]:
    """Returns the variables with which commands import this checkout, not one in the current folder."""
    folders = [str(REPOSITORY)] if PLUGIN.parent == REPOSITORY else []  # a wheel is installed
    if given := os.environ.get("PYTHONPATH"):
        folders.append(given)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(folders)}


def failure(command: list[str], exit_code: int, log: Path, start: int) -> CommandFailed:
    """Returns the error of a command whose output starts at byte ``start`` of its log."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    if line := rejection(lines, exit_code):
        name = "fairseq-train" if command[0] == "torchrun" else command[0]
        return CommandRejected(f"{name} rejects its arguments: {REJECTION.sub('', line)}")
    ending = [f"end of {log}:", *lines[-8:]]
    cause = failure_cause(lines, exit_code, log)
    if cause and cause != ending[-1].strip():
        ending.append(f"cause: {cause}")
    return CommandFailed(
        "\n".join([f"{command[0]} failed with exit code {exit_code}; {ending[0]}", *ending[1:]])
    )


def _follow(process, output, stop):
    partial_line = b""
    exited = False
    while not exited:
        exited = process.poll() is not None  # checked before the last read, so that all output is read
        *lines, partial_line = (partial_line + output.read()).split(b"\n")
        if exited and partial_line:
            lines.append(partial_line)
        for line in lines:
            yield line.decode(errors="replace") + "\n"
        if stop is not None and stop.is_set():
            raise CommandFailed("stopped")
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_INTERVAL)


def available_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    # macOS does not restrict processes to cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_in(environment: Mapping[str, str]) -> int | None:
    """Returns the number of threads of a process by OMP_NUM_THREADS, or None if the variable is not set.

    The value may be a list of numbers, of which the first counts; the others are for nested loops.

    Raises:
        UserError: if the value is not a number; OpenMP would ignore it and use all cores.
    """
    if not (value := environment.get("OMP_NUM_THREADS", "").strip()):
        return None
    first = value.partition(",")[0].strip()
    if not (first.isdecimal() and int(first)):
        raise UserError(f"OMP_NUM_THREADS is {value!r}: set it to a number of threads, or unset it")
    return int(first)


def die_with_parent() -> Callable[[], None]:
    """Returns a ``preexec_fn``: the child ignores CLUSTER_SIGNALS and, on Linux, ends with this process."""
    return partial(_die_with, os.getpid())


def _die_with(parent):
    for number in CLUSTER_SIGNALS:  # they would kill torchrun before its workers have saved a checkpoint
        signal.signal(number, signal.SIG_IGN)
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)


def seconds_in_job() -> float:
    """Returns the time until shortly before the end of this SLURM job, but at least ``GRACE_PERIOD``."""
    end = float(os.environ.get("SLURM_JOB_END_TIME", 0))  # set since SLURM 22.05
    return max(GRACE_PERIOD, end - time.time() - GRACE_PERIOD / 2)


def terminate_group(process: subprocess.Popen, seconds: float) -> None:
    """Sends SIGTERM to the group of a process, and SIGKILL when the process ends or after ``seconds``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(seconds)


@contextmanager
def defer_signals() -> Iterator[None]:
    received = []
    with handle_signals(lambda number, frame: received.append(number), *TERMINATION_SIGNALS, signal.SIGINT):
        yield
    for number in received:
        signal.raise_signal(number)


def exit_on_signals():
    """Makes ``TERMINATION_SIGNALS`` raise SystemExit inside the block, as Ctrl-C raises KeyboardInterrupt."""
    return handle_signals(lambda number, frame: sys.exit(128 + number), *TERMINATION_SIGNALS)


@contextmanager
def handle_signals(handler: Callable, *signals: int) -> Iterator[None]:
    """Calls ``handler`` for ``signals`` in the block, except for those that are ignored, as under nohup.

    Outside the main thread, no signal is handled.
    """
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def as_flags(flags: dict[str, object]) -> list[str]:
    """Converts a dictionary to a list of command-line flags, without values that are None or False.

    For example, {"max_update": 5, "cpu": True, "x": None} becomes ["--max-update", "5", "--cpu"].
    """
    words = []
    for name, value in flags.items():
        if value is not None and value is not False:
            words.append("--" + name.replace("_", "-"))
            if value is not True:
                words.append(str(value))
    return words
