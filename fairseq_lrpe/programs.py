"""What every program of ours asks of its arguments, and how it ends."""

import argparse
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairseq_lrpe.commands import CommandFailed, ending_signals
from fairseq_lrpe.files import new_folder


@contextmanager
def one_sentence(program: str) -> Iterator[None]:
    """Ends ``program`` with one sentence and a non-zero exit for what a person can mend or interrupts.

    It ends without a word where nobody reads its output any more, as after ``| head``.
    """
    try:
        with ending_signals():
            yield
        sys.stdout.flush()  # or a closed pipe would be found after the end
    except (ValueError, OSError, CommandFailed) as error:
        if isinstance(error, BrokenPipeError) and is_unread(sys.stdout):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
            sys.exit(128 + signal.SIGPIPE)
        sys.exit(f"{program}: {first_line(error)}")
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not is_omegaconfs(error):
            raise
        sys.exit(f"{program}: {first_line(error)}")


def is_omegaconfs(error: Exception) -> bool:
    """Whether an error is of omegaconf, which not every program of ours imports."""
    return type(error).__module__.partition(".")[0] == "omegaconf"


def first_line(error: Exception) -> str:
    """Returns what an error says; of omegaconf's without the further lines, which name types."""
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename
        return f"{path} cannot be read or written ({error.strerror})" if path else error.strerror
    return str(error).splitlines()[0] if is_omegaconfs(error) else str(error)


def lines_on_stdin() -> list[str]:
    """Returns the lines of standard input without their ends; ValueError if it is no UTF-8 text."""
    try:
        return [line.removesuffix("\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise ValueError(f"the text is not UTF-8 ({error}): convert it first") from None


def is_unread(stream: IO) -> bool:
    """Whether the stream is a pipe that nobody reads from any more."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def a_path(text: str) -> Path:
    """Returns a path, which an empty text is not: it would be whatever folder a program is started in."""
    if not text:
        raise argparse.ArgumentTypeError("is empty: a path is needed")
    return Path(text)


def absolute(text: str) -> Path:
    """Returns a path that stays the same whatever folder a program works in."""
    return a_path(text).absolute()


def picture(text: str) -> Path:
    """Returns the path of a picture that can be written."""
    return _written(text, ".png", ".pdf", ".svg")


def page(text: str) -> Path:
    """Returns the path of an HTML page that can be written."""
    return _written(text, ".html")


def _written(text, *endings):
    path = absolute(text)
    if path.suffix not in endings or os.path.isdir(path):
        ends = " or ".join(", ".join(endings).rsplit(", ", 1))
        raise argparse.ArgumentTypeError(f"must be a file that ends in {ends}, not {text!r}")
    try:
        with new_folder(path.parent):
            return path
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def at_least(smallest: int) -> Callable[[str], int]:
    """Returns the type of an argparse option that is a whole number from ``smallest`` on."""

    def number(text):
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"must be a whole number from {smallest} on, not {text!r}")
        return int(text)

    return number


def show_wide(shown: object) -> None:
    """Prints what rich can show; into a pipe, which has no width of its own, 150 characters wide."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=150)).print(shown)
