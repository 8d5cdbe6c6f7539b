"""Helpers for command-line programs: argument types, standard input and output, and error messages."""

import argparse
import codecs
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairseq_lrpe.utils.files import output_folder
from fairseq_lrpe.utils.subprocesses import CommandFailed, exit_on_signals


@contextmanager
def exit_on_error(program: str) -> Iterator[None]:
    """Exits with a message instead of a traceback if an expected error occurs in the block.

    Expected errors are ``ValueError``, ``OSError``, ``CommandFailed``, omegaconf's errors and Ctrl-C. Other
    exceptions propagate. If stdout is a closed pipe, as after ``| head``, no message is printed.
    """
    try:
        with exit_on_signals():
            yield
        sys.stdout.flush()  # raises BrokenPipeError here instead of at exit
    except KeyboardInterrupt as interrupt:
        print(f"\n{program}: interrupted{interrupt}", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_closed_pipe(sys.stdout):
            # Otherwise Python would report the remaining output as a second error at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + signal.SIGPIPE)
        if not (isinstance(error, ValueError | OSError | CommandFailed) or is_omegaconf_error(error)):
            raise
        sys.exit(f"{program}: {error_message(error)}")


@contextmanager
def resumable(advice: str = "run the same command to resume") -> Iterator[None]:
    """Makes ``exit_on_error`` print the advice after Ctrl-C in the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"; {advice}") from None


def is_omegaconf_error(error: Exception) -> bool:
    """Returns whether omegaconf raised the error; omegaconf itself is not imported, since that takes long."""
    return type(error).__module__.partition(".")[0] == "omegaconf"


def error_message(error: Exception) -> str:
    """Returns the message to print for an error; omegaconf's errors are reduced to their first line."""
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename
        return f"{path} cannot be read or written ({error.strerror})" if path else error.strerror
    return str(error).splitlines()[0] if is_omegaconf_error(error) else str(error)


def read_stdin_lines() -> list[str]:
    """Returns the lines of standard input without their ends; raises ValueError if it is not UTF-8."""
    decode_stdin()
    return [line.removesuffix("\n").removesuffix("\r") for line in sys.stdin]


def decode_stdin(error_type: type[BaseException] = ValueError) -> None:
    """Decodes standard input as UTF-8, without a byte order mark; only newlines end lines.

    Python accepts invalid bytes in the locale C.UTF-8; reading them then raises an ``error_type`` with a
    one-line message.
    """

    def fail(error):
        raise error_type(f"standard input is not UTF-8 ({error}): convert the text to UTF-8")

    codecs.register_error("fail", fail)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="fail", newline="\n")


def is_closed_pipe(stream: IO) -> bool:
    """Returns whether the stream is a pipe whose reading end is closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def new_parser(prog: str, description: str, arguments: str) -> argparse.ArgumentParser:
    """Returns a parser that keeps the line breaks of the description; its usage is ``prog arguments``."""
    formatter = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog, f"%(prog)s {arguments}", description, formatter_class=formatter)


def path_arg(text: str) -> Path:
    """Converts an argument to a path; an empty argument, which ``Path`` accepts as ".", is an error."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, not an empty string")
    return Path(text)


def abs_path(text: str) -> Path:
    """Converts an argument to an absolute path."""
    return path_arg(text).absolute()


def image_path(text: str) -> Path:
    """Converts an argument to the absolute path of a writable PNG, PDF or SVG file."""
    return output_path(text, ".png", ".pdf", ".svg")


def html_path(text: str) -> Path:
    """Converts an argument to the absolute path of a writable HTML file."""
    return output_path(text, ".html")


def output_path(text: str, *suffixes: str) -> Path:
    """Converts an argument to the absolute path of a writable file with one of the suffixes."""
    path = abs_path(text)
    if path.suffix not in suffixes or os.path.isdir(path):
        ends = " or ".join(", ".join(suffixes).rsplit(", ", 1))
        raise argparse.ArgumentTypeError(f"must be a file that ends in {ends}, not {text!r}")
    try:
        with output_folder(path.parent):
            return path
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def min_int(minimum: int) -> Callable[[str], int]:
    """Returns an argparse type that accepts integers of at least ``minimum``."""

    def convert(text):
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, not {text!r}")
        return int(text)

    return convert


def print_wide(renderable: object) -> None:
    """Prints a rich renderable in the width of the terminal, or in 150 characters if there is no terminal."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=150)).print(renderable)
