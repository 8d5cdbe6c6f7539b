"""Runs fairseq's commands as subprocesses, with their whole output in a log."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP)
PLUGIN = Path(__file__).resolve().parent
LOOK = 0.1  # seconds between two looks into a command's log
GRACE = 30  # seconds from asking a command to end to ending it; torchrun has to end its own processes
# glibc hands a large tensor's memory back and fetches the next one's page by page, a quarter of the time on
# the CPU; so it keeps what it has.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


class CommandFailed(Exception):
    """A command did not end with exit code 0; the message names it, its log and the log's last lines."""


def run_command(command, log, on_line=lambda line: None, **popen):
    """Runs a command of this environment; appends all it prints to the file ``log``, and gives each line on.

    Whatever ends this program early ends the command too. The command writes to the log itself, so that
    nothing is lost of what it printed before a kill -9.
    """
    program = Path(sys.executable).parent / command[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    process = None
    with ending_signals(), log.open("ab") as file, log.open("rb") as printed:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        printed.seek(0, os.SEEK_END)
        try:
            with holding_signals():  # or one that comes here would leave the command running
                process = subprocess.Popen(
                    [str(program), *command[1:]],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**KEEP_MEMORY, **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"},
                    start_new_session=True,
                    preexec_fn=ending_with_this(),
                    **popen,
                )
            for line in _lines(process, printed):
                on_line(line)
        except BaseException:
            if process is not None:
                end_group(process)
            raise
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise CommandFailed(f"{command[0]} ended with exit code {process.returncode}; {log} ends so:\n{tail}")


def _lines(process, printed):
    """Yields each line that a process writes to a file, until it has ended."""
    part, ended = b"", False
    while not ended:
        ended = process.poll() is not None  # before the last look, which then misses nothing
        *lines, part = (part + printed.read()).split(b"\n")
        if ended and part:
            lines.append(part)
        for line in lines:
            yield line.decode(errors="replace") + "\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK)


def ending_with_this():
    """Returns what Popen takes as preexec_fn of a process that Linux shall end if this one is killed."""
    parent = os.getpid()

    def prepare():
        if LIBC:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it was killed before that
                os._exit(1)

    return prepare


def end_group(process):
    """Ends a process that leads a group of its own, and all it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


@contextmanager
def holding_signals():
    """Signals that would end this program and come inside arrive when it is left."""
    came = []
    with answering(lambda number, frame: came.append(number), *ENDING, signal.SIGINT):
        yield
    for number in came:
        signal.raise_signal(number)


@contextmanager
def ending_signals():
    """Inside, SIGTERM and a closed terminal raise SystemExit, as Ctrl-C raises KeyboardInterrupt."""

    def end(number, frame):
        raise SystemExit(128 + number)

    with answering(end, *ENDING):
        yield


@contextmanager
def answering(handler, *signals):
    """Inside, these signals call ``handler``, but not if ignored, as under nohup, or in another thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_flags(flags):
    """{"max_update": 5, "cpu": True, "x": None} -> ["--max-update", 5, "--cpu"]"""
    words = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(value)
    return words
