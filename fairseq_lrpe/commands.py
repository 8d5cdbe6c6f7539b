"""Runs fairseq's commands as subprocesses, with their whole output in a log."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP)
PLUGIN = Path(__file__).resolve().parent
GRACE = 30  # seconds from asking a command to end to ending it; torchrun has to end its own processes
# glibc hands a large tensor's memory back and fetches the next one's page by page, a quarter of the time on
# the CPU; so it keeps what it has.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


class CommandFailed(Exception):
    """A command did not end with exit code 0; the message names it, its log and the log's last lines."""


def run_command(command, log, on_line=lambda line: None, **popen):
    """Runs a command of this environment; appends all it prints to the file ``log``, and gives each line on.

    Whatever ends this program early, but kill -9, ends the command and all its processes.
    """
    program = Path(sys.executable).parent / command[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    process = None
    with ending_signals(), log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        try:
            with holding_signals():  # or one that comes here would leave the command running
                process = subprocess.Popen(
                    [str(program), *command[1:]],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    env={**KEEP_MEMORY, **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"},
                    start_new_session=True,
                    **popen,
                )
            for line in process.stdout:
                file.write(line)
                file.flush()
                on_line(line)
            process.wait()
        except BaseException:
            if process is not None:
                end_group(process)
            raise
    if process.returncode:
        tail = "\n".join(log.read_text().splitlines()[-8:])
        raise CommandFailed(f"{command[0]} ended with exit code {process.returncode}; {log} ends so:\n{tail}")


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
