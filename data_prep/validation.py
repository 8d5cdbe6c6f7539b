"""Validation of input texts, and records of the sources of output folders."""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from data_prep.progress import progress
from fairseq_lrpe.utils.files import atomic_folder, read_lines

SOURCE_FILE, PATH_FILE = "source.txt", "source.json"
OPTIONS = r"(, version [\w.]+)?((,| in) \d[\d ]*[a-z ]+)*(, with (vectors|word pieces) of .+)?$"
"""Pattern of the options that follow the path in a record of version 1.0.0, which has no PATH_FILE."""


class Source(str):
    """Record of a source: the path given by --from, or the published name, and all options that affect data.

    ``path`` is the path, or None.
    """

    path: str | None = None

    @classmethod
    def of(cls, text: str, path: str | None) -> "Source":
        """Returns the record with a text and a path."""
        source = cls(text)
        source.path = path
        return source


def check_text(path: Path, expected: str = "expected a text file") -> int:
    """Returns the number of lines of a text file.

    Args:
        path: Text file.
        expected: End of the error message if the file is missing, which says what is expected.

    Raises:
        ValueError: If the file is missing, blank, not valid UTF-8, or a single line with carriage returns.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing: {expected}")
    lines = progress(read_lines(path), f"checking {path.name}", "lines")
    kinds = Counter(("\0" in line, bool(line.strip()), "\r" in line) for line in lines)
    zeros, text, returns = map(any, zip(*kinds, strict=True)) if kinds else (False,) * 3
    if zeros:  # UTF-16 text of ASCII characters without a byte order mark is valid UTF-8
        raise ValueError(f"{path} contains zero bytes, like UTF-16 text: convert it to UTF-8")
    if not text:
        raise ValueError(f"{path} is empty or blank: expected text")
    if returns and kinds.total() == 1:
        remedy = r"convert them to newlines, for example with `tr '\r' '\n'`"
        raise ValueError(f"{path} has only carriage returns as line ends: {remedy}")
    return kinds.total()


def usable_rows(
    lines: Iterable,
    parse: Callable,
    name: object,
    *,
    start: int = 1,
    limit: int | None = None,
    required: bool = False,
    report: bool = True,
) -> Iterator:
    """Yields ``parse(line)`` for each line, except those for which it raises a ValueError.

    Args:
        lines: Lines of a file.
        parse: Function whose errors say what a line has, such as "has 3 fields instead of 6".
        name: Name of the file for messages.
        start: Number of the first line.
        limit: Maximum number of rows.
        required: Whether every line is required, so that none may be left out.
        report: Whether to print the number of lines that are left out.

    Raises:
        ValueError: At the end, if most lines would be left out, or any that is ``required``.
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
    if broken and report:
        print(f"{name}: left out {broken:,} of {kept + broken:,} rows: {first}", flush=True)


def check_out(out: Path, source: Source) -> None:
    """Raises ValueError if ``out`` contains data prepared from another source."""
    for folder in (out / "text", *sorted(out.glob("bin*"))):
        recorded = read_source(folder)
        if recorded not in ("", source):
            remedy = f"use the same source and options, remove {out}, or change --out"
            raise ValueError(f"{folder} was made from {recorded}: {remedy}")
        if not recorded and folder.name in ("text", "bin") and folder.exists():
            raise ValueError(f"{folder} was not created by this command: remove it, or change --out")


@contextlib.contextmanager
def folder_with_source(folder: Path, source: Source) -> Iterator[Path]:
    """Yields a temporary folder, and on success records the source in it and renames it to ``folder``."""
    print(f"Preparing {folder}", flush=True)
    with atomic_folder(folder) as part:
        yield part
        write_source(part, source)


def write_source(folder: Path, source: Source) -> None:
    """Records in a folder the source of its content."""
    (folder / SOURCE_FILE).write_text(f"{source}\n")
    (folder / PATH_FILE).write_text(json.dumps({"from": source.path}) + "\n")


def read_source(folder: Path) -> Source:
    """Returns the source recorded in a folder, or an empty one if there is no record."""
    file, paths = folder / SOURCE_FILE, folder / PATH_FILE
    text = file.read_text(errors="replace").strip() if file.is_file() else ""
    if paths.is_file():
        return Source.of(text, json.loads(paths.read_text())["from"])
    path = re.sub(OPTIONS, "", text)
    return Source.of(text, path if os.path.isabs(path) else None)
