"""Validation of input texts, and records of the options with which folders were made."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from data_prep.progress import progress
from fairseq_lrpe.utils.files import atomic_folder, read_lines

RECORD = "source.json"
"""File in a prepared folder: the path given by --from, or None, and the options that affect the data."""
OLD_RECORD = "source.txt"
"""Record of version 1.0.0, which is not compared."""


def check_text(path: Path, expected: str = "expected a text file") -> int:
    """Returns the number of lines of a text file.

    Args:
        path: Text file.
        expected: End of the error message if the file is missing, which says what is expected.

    Raises:
        ValueError: If the file is missing, blank, or not valid UTF-8.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing: {expected}")
    count, blank = 0, True
    for line in progress(read_lines(path), f"checking {path.name}", "lines"):
        count += 1
        blank = blank and not line.strip()
    if blank:
        raise ValueError(f"{path} is empty or blank: expected text")
    return count


def usable_rows(
    lines: Iterable,
    parse: Callable,
    name: object,
    *,
    start: int = 1,
    limit: int | None = None,
    required: bool = False,
) -> Iterator:
    """Yields ``parse(line)`` for each line, except those for which it raises a ValueError.

    The number of lines that are left out is printed.

    Args:
        lines: Lines of a file.
        parse: Function whose errors say what a line has, such as "has 3 fields instead of 6".
        name: Name of the file for messages.
        start: Number of the first line.
        limit: Maximum number of rows.
        required: Whether every line is required, so that none may be left out.

    Raises:
        ValueError: At the end, if most lines would be left out, or any that is ``required``, or if there are
            no rows.
    """
    kept, broken, first = 0, 0, ""
    for number, line in enumerate(lines, start):
        if kept == limit:
            break
        try:
            row = parse(line)
        except ValueError as error:
            first = first or f"line {number} {error}"
            broken += 1
        else:
            kept += 1
            yield row
    if broken > kept or (broken and required):
        others = f"; {broken - 1:,} more lines are broken" if broken > 1 else ""
        raise ValueError(f"{name} {first}{others}")
    if not kept:
        raise ValueError(f"{name} has no rows")
    if broken:
        print(f"{name}: left out {broken:,} of {kept + broken:,} rows: {first}", flush=True)


def check_out(out: Path, record: dict) -> None:
    """Raises ValueError if ``out`` contains data that was made with other options than ``record``."""
    for folder in (out / "text", out / "bin"):
        file = folder / RECORD
        if file.is_file():
            for name, value in json.loads(file.read_text()).items():
                if value != record.get(name):
                    option, values = (
                        f"--{name.replace('_', '-')}",
                        value if isinstance(value, list) else [value],
                    )
                    used = (
                        f"without {option}"
                        if value is None
                        else " ".join(["with", option, *map(str, values)])
                    )
                    remedy = f"use the same source and options, remove {out}, or change --out"
                    raise ValueError(f"{folder} was made {used}: {remedy}")
        elif folder.exists() and not (folder / OLD_RECORD).is_file():
            raise ValueError(f"{folder} was not created by this command: remove it, or change --out")


@contextlib.contextmanager
def recorded_folder(folder: Path, record: dict) -> Iterator[Path]:
    """Yields a temporary folder, and on success writes the record to it and renames it to ``folder``."""
    print(f"Preparing {folder}", flush=True)
    with atomic_folder(folder) as part:
        yield part
        (part / RECORD).write_text(json.dumps(record) + "\n")
