"""The cause of a failed command, from its output, its exit code and the disk of its log."""

import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fairseq_lrpe.utils.files import DISK_FULL_ERRORS

PROBE_BYTES = 1 << 16
"""Number of bytes that are written to find out whether a disk is full."""
RANK = re.compile(r"^\[rank\d+\]: ?")
"""Start of the lines that torch prints for an exception in one of several processes."""
TRACEBACK = "Traceback (most recent call last):"
IGNORED = "Exception ignored in"
"""Start of the line before the traceback of an exception that did not end the program."""
FATAL = re.compile(r"Fatal |terminate called|\s*what\(\): ")
"""Start of the lines that the C library, Python or C++ prints before it aborts a program."""
MACHINE = re.compile(
    r"No space left|quota exceeded|File too large|Too many open files|Input/output error|"
    r"[Oo]ut of memory|OutOfMemory|bad_alloc|MemoryError|[Nn]ot enough memory|allocate memory|"
    r"failed to map|shared memory|shm_open|Bus error|killed by signal|signal SIG"
)
"""Errors of the machine; an exception that names one of them is the cause of the exceptions that follow."""
SUMMARY = re.compile("ChildFailedError|ProcessRaisedException")
"""Exceptions of torchrun and torch.multiprocessing, which only say that a process has failed."""
CONSEQUENCE = re.compile("Connection (closed|reset)|Broken ?[Pp]ipe|ConnectionReset")
"""Exceptions of the other processes after one has failed."""
FAILED_PROCESS = re.compile(r"failed \(exitcode: (-?\d+)\)")
"""torchrun's report of the process that failed first."""
REJECTION = re.compile(r"fairseq_lrpe: |(fairseq-[a-z-]+|\w+\.py): error: ")
"""Start of the last line that a command of fairseq prints if it rejects its arguments."""
SIGNALS = {
    signal.SIGKILL: "as by the kernel or a cluster when the memory is exhausted",
    signal.SIGBUS: "as if the shared memory in /dev/shm, or the disk of a memory-mapped file, is full",
}
SEMAPHORE = "_multiprocessing.SemLock("
"""Call in the traceback of an error that a semaphore of Python's multiprocessing raises."""
ADVICE = (
    (
        re.compile(r"shared memory|shm_open|Bus error|SIGBUS"),
        "/dev/shm is too small for the processes that load data: enlarge it, as with docker's --shm-size, "
        "or load data without them (train.num_workers=0, fairseq's --num-workers 0)",
    ),
    (re.compile("Too many open files"), "raise the limit with `ulimit -n`, or reduce train.num_workers"),
    (re.compile("CUDA out of memory|OutOfMemoryError"), "reduce batch.per_gpu"),
)
"""What to do about an error."""


def failure_cause(lines: list[str], exit_code: int, log: Path) -> str | None:
    """Returns one line with the cause of a failure and advice, or None if the output has no cause.

    A full disk is found by writing to it, since a log on a full disk cannot contain the message. An error of
    the machine takes precedence over later exceptions, and the exception of a process over those that
    torchrun and the other processes raise because of it.

    Args:
        lines: the output of the command.
        exit_code: the exit code of the command, which is negative after a signal.
        log: the file with the output.
    """
    if error := write_error(log):
        return f"{log.parent} cannot be written ({error.strerror})"
    errors = exceptions_of_processes(lines)
    errors += [line.strip() for line in lines if FATAL.match(line)]
    last = None
    last_independent = None
    last_of_machine = None
    for error in errors:
        last = error
        if not CONSEQUENCE.search(error):
            last_independent = error
        if MACHINE.search(error):
            last_of_machine = error
    # An error of the machine also explains why a process was killed, and a killed process why others failed.
    cause = last_of_machine or signal_text(lines, exit_code) or last_independent or last
    return with_advice(cause, lines) if cause else None


def rejection(lines: list[str], exit_code: int) -> str | None:
    """Returns the last line if a command of fairseq rejects its arguments in this line, or None.

    The lines of the processes that torchrun starts precede those of torchrun itself.
    """
    if exceptions_of_processes(lines) or signal_text(lines, exit_code):
        return None
    printed = lines[-1:]
    for number, line in enumerate(lines):
        if FAILED_PROCESS.search(line):
            printed = lines[:number]
            break
    return next((line for line in reversed(printed) if REJECTION.match(line)), None)


def with_advice(error: str, traceback: list[str]) -> str:
    """Returns an error with advice; the traceback tells whether a semaphore raised the error."""
    if "[Errno" in error and any(SEMAPHORE in line for line in traceback):
        return f"{error}: /dev/shm cannot hold a semaphore: enlarge it, as with docker's --shm-size"
    for pattern, advice in ADVICE:
        if pattern.search(error):
            return f"{error}: {advice}"
    return error


def write_error(log: Path) -> OSError | None:
    """Returns the error if the disk of a log is full, or if the log must not grow."""
    try:
        with log.open("ab") as file, tempfile.TemporaryFile(dir=log.parent) as probe:
            file.write(b"\n")
            probe.write(bytes(PROBE_BYTES))
    except OSError as error:
        return error if error.errno in DISK_FULL_ERRORS else None
    return None


def signal_text(lines: list[str], exit_code: int) -> str | None:
    """Returns a line on the signal that killed the command or the first failed process, or None."""
    codes = [exit_code]
    for line in lines:
        if match := FAILED_PROCESS.search(line):
            codes.append(int(match[1]))
    code = next((code for code in codes if code < 0), None)
    if code is None or -code == signal.SIGABRT:  # its reason is printed before
        return None
    number = signal.Signals(-code)
    reason = f", {SIGNALS[number]}" if number in SIGNALS else ""
    return f"a process was killed by {number.name}{reason}"


def exceptions_of_processes(lines: list[str]) -> list[str]:
    """Returns the uncaught exceptions, without those that only say that a process has failed."""
    return [error for error in uncaught_exceptions(lines) if not SUMMARY.search(error)]


def uncaught_exceptions(lines: list[str]) -> Iterator[str]:
    """Yields the last line of each traceback, which has the type and message of the exception."""
    before = ""
    in_traceback = False
    unfinished = ""
    for line in lines:
        text = RANK.sub("", line)
        if text.endswith(TRACEBACK):
            in_traceback = not before.startswith(IGNORED)
            unfinished = ""
        elif unfinished and text.strip():  # the message starts on this line
            yield f"{unfinished} {text.strip()}"
            unfinished = ""
        elif in_traceback and text and not text[0].isspace():
            in_traceback = False
            if text.rstrip().endswith(":"):
                unfinished = text.rstrip()
            else:
                yield text.strip()
        before = text
    if unfinished:
        yield unfinished
