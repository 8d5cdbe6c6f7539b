"""Helpers for command-line programs: argument types, standard input and output, and error messages."""

import argparse
import codecs
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.failure_cause import with_advice
from fairseq_lrpe.utils.files import output_folder
from fairseq_lrpe.utils.subprocesses import CommandFailed, exit_on_signals


def is_fairseq_command() -> bool:
    """Returns whether this process runs fairseq-train, fairseq_cli/train.py or the like."""
    path = Path(sys.argv[0])
    return path.name.startswith(("fairseq-", "fairseq_cli.")) or path.parent.name == "fairseq_cli"


@contextmanager
def exit_on_error(program: str) -> Iterator[None]:
    """Exits with a message, without a traceback, after a UserError, OSError, CommandFailed or Ctrl-C."""
    try:
        with exit_on_signals():
            yield
        if sys.stdout is not None:
            sys.stdout.flush()  # raises BrokenPipeError here instead of at exit
    except KeyboardInterrupt as interrupt:
        print(f"\n{program}: interrupted{interrupt}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # as after ``| head``
        # Otherwise Python would report the remaining output as a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        sys.exit(f"{program}: {file_error(error)}")
    except (UserError, CommandFailed) as error:
        sys.exit(f"{program}: {error}")


@contextmanager
def file_errors() -> Iterator[None]:
    """Converts an OSError that the block raises, which reads files, to a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(file_error(error)) from None


def file_error(error: OSError) -> str:
    path = error.filename2 or error.filename
    reason = error.strerror or str(error)
    if path:
        return f"{path} cannot be read or written ({reason})"
    return with_advice(reason if error.errno is None else str(error), traceback.format_exception(error))


@contextmanager
def resumable(advice: str = "run the same command to resume") -> Iterator[None]:
    """Makes ``exit_on_error`` print the advice after Ctrl-C in the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"; {advice}") from None


def open_standard_streams() -> None:
    """Opens standard input, output and error if they are closed, as after ``>&-``; output is then lost.

    Otherwise, the next file that a program opens gets the number of a closed stream, and every library that
    prints a message writes to this file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lower ones are open, so that this file gets the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def read_stdin_lines() -> list[str]:
    decode_stdin()
    return [line.removesuffix("\n").removesuffix("\r") for line in sys.stdin]


def decode_stdin(error_type: type[BaseException] = UserError) -> None:
    """Decodes standard input as UTF-8, without a byte order mark; only newlines end lines.

    Python accepts invalid bytes in the locale C.UTF-8; here, they raise an ``error_type``.
    """

    def fail(error):
        raise error_type(f"standard input is not UTF-8 ({error}): convert the text to UTF-8")

    codecs.register_error("fail", fail)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="fail", newline="\n")


def new_parser(prog: str, description: str, arguments: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog,
        f"%(prog)s {arguments}",
        description,
        epilog="--import MODULE, which may be repeated, imports encodings and methods of your own.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def path_arg(text: str) -> Path:
    if not text:
        raise UserError("must be a path, not an empty string")
    return Path(text)


def abs_path(text: str) -> Path:
    return path_arg(text).absolute()


def image_path(text: str) -> Path:
    return output_path(text, ".png", ".pdf", ".svg")


def html_path(text: str) -> Path:
    return output_path(text, ".html")


def output_path(text: str, *suffixes: str) -> Path:
    path = abs_path(text)
    if path.suffix not in suffixes or os.path.isdir(path):
        ends = " or ".join(", ".join(suffixes).rsplit(", ", 1))
        raise UserError(f"must be a file that ends in {ends}, not {text!r}")
    with output_folder(path.parent):
        return path


def min_int(minimum: int) -> Callable[[str], int]:
    def convert(text):
        if not text.isdecimal() or int(text) < minimum:
            raise UserError(f"must be an integer of at least {minimum}, not {text!r}")
        return int(text)

    return convert


def print_wide(renderable: object) -> None:
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=150)).print(renderable)
