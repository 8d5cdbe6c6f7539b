"""Validation of text files and of their rows. A few broken rows are left out; many are an error."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from data_prep.parallel import progress
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_lines

MAX_REASONS = 5  # number of different errors of a file's rows that are shown
NUMBER = re.compile(r"\d+")


def check_text(path: Path) -> int:
    """Returns the number of lines of a text file.

    Raises:
        UserError: if the file is missing, blank, or not UTF-8.
    """
    if not file_exists(path):
        raise UserError(f"{path} is missing: `--help` describes the files that --from expects")
    count = 0
    blank = True
    for line in progress(read_lines(path), f"checking {path.name}", "lines"):
        count += 1
        blank = blank and not line.strip()
    if blank:
        raise UserError(f"{path} is empty or blank: expected text")
    return count


def check_parallel(paths: Iterable[Path]) -> None:
    """Raises UserError if a file has no text, or if the files have different numbers of lines."""
    counts = {path: check_text(path) for path in paths}
    (first, expected), *others = counts.items()
    for path, count in others:
        if count != expected:
            wrong = f"has {expected:,} lines, but {path} has {count:,}"
            raise UserError(f"{first} {wrong}: pass files whose lines correspond")


def check_one_folder(folders: Iterable[Path], source: Path) -> None:
    """Raises UserError if ``folders``, below ``source``, are several, because they may be copies of one."""
    first, *others = sorted({os.path.relpath(folder, source) for folder in folders})
    if others:
        wrong = f"--from has files in {first} and {others[0]}, which may be the same ones"
        raise UserError(f"{wrong}: pass a folder with one of them")


def is_unicode(*texts: str) -> bool:
    r"""Returns whether UTF-8 can encode the texts; JSON can contain unpaired surrogates, such as "\ud83d"."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def usable_rows(
    lines: Iterable, parse: Callable, name: object, start: int = 1, limit: int | None = None, required=False
) -> Iterator:
    """Yields ``parse(line)`` for each line of a file, except broken lines, for which it raises ValueError.

    The number of broken lines is printed, with the first line of each error, such as "has 3 fields instead of
    6". Errors that differ only in numbers are one.

    Args:
        lines: the lines.
        parse: function that returns the row in a line.
        name: name of the file, for messages.
        start: number of the first line.
        limit: maximum number of rows, or None.
        required: whether a broken line is an error.

    Raises:
        UserError: at the end, if there are no rows, more broken lines than rows, or a broken line although
            all lines are ``required``.
    """
    kept = 0
    broken = 0
    reasons = {}  # {error without its numbers: the first line that has it, and the error}
    for number, line in enumerate(lines, start):
        if kept == limit:
            break
        try:
            row = parse(line)
        except ValueError as error:
            reasons.setdefault(NUMBER.sub("", str(error)), f"line {number} {error}")
            broken += 1
        else:
            kept += 1
            yield row
    if broken > kept or (broken and required):
        raise UserError(f"{name} {_listed(reasons)}; {broken:,} broken lines in total: correct them")
    if not kept:
        raise UserError(f"{name} has no rows: expected at least one")
    if broken:
        print(f"{name}: left out {broken:,} of {kept + broken:,} rows: {_listed(reasons)}", flush=True)


def _listed(reasons):
    """Returns the values of ``reasons``, such as "line 3 has 2 fields instead of 6; line 9 is not JSON"."""
    texts = list(reasons.values())
    others = len(texts) - MAX_REASONS
    if others > 0:
        texts[MAX_REASONS:] = [f"and {others:,} other errors" if others > 1 else "and another error"]
    return "; ".join(texts)
