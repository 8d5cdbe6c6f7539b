"""What is asked of a preparation, checked before any work: wrong input gets one sentence."""

import contextlib
import os
import shutil
import signal
import sys

from data_prep.fetch import FetchError
from fairseq_lrpe.commands import CommandFailed

NOTE = "source.txt"


class BadInput(Exception):
    """Something given cannot be used; the message says what, where and what would work."""


@contextlib.contextmanager
def one_sentence(program):
    """What a user can mend ends ``program`` with one sentence on stderr instead of a traceback.

    SIGTERM counts as an interruption too, so that no process of this one's is left behind.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except (BadInput, FetchError, CommandFailed, OSError) as error:
        sys.exit(f"{program}: {error}")
    finally:
        signal.signal(signal.SIGTERM, before)


def check_text(path):
    """BadInput unless ``path`` is UTF-8 text, to its end, and not blank."""
    try:
        with path.open(encoding="utf-8") as file:
            if not sum(bool(line.strip()) for line in file):
                raise BadInput(f"{path} is empty: text is needed")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text ({error}): convert it first") from None


def check_workers(workers):
    if workers < 1:
        raise BadInput(f"--workers must be at least 1, not {workers}")


def check_out(out, source):
    """BadInput if ``out`` is no folder, or has something made from another source: they would be mixed up."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file: --out takes a folder")
    for product in (out / "text", *sorted(out.glob("bin*"))):
        note = product / NOTE
        if note.exists() and (held := note.read_text().strip()) != str(source):
            raise BadInput(
                f"{product} was made from {held}: give that to --from, remove {out}, or change --out"
            )


@contextlib.contextmanager
def whole_folder(folder, source):
    """A folder to fill, with a note of its source; it takes the name ``folder`` once it is full."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    leave_note(part, source)
    os.replace(part, folder)


def leave_note(product, source):
    """Leaves in the folder ``product`` what it was made from, for ``check_out``."""
    (product / NOTE).write_text(f"{source}\n")
