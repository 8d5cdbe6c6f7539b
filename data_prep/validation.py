"""Validation of input texts, and records of the sources of output folders."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data_prep.progress import progress
from fairseq_lrpe.utils.files import atomic_folder, iterate_lines

SOURCE_FILE = "source.txt"


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
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            lines = progress(iterate_lines(file), f"checking {path.name}", "lines")
            kinds = Counter(None if "\0" in line else bool(line.strip()) for line in lines)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): convert it to UTF-8") from None
    if kinds[None]:  # UTF-16 text of ASCII characters without a byte order mark is valid UTF-8
        raise ValueError(f"{path} contains zero bytes, like UTF-16 text: convert it to UTF-8")
    if not kinds[True]:
        raise ValueError(f"{path} is empty or blank: expected text")
    return kinds.total()


def check_out(out: Path, source: str) -> None:
    """Raises ValueError if ``out`` contains data prepared from another source."""
    for folder in (out / "text", *sorted(out.glob("bin*"))):
        recorded = read_source(folder)
        if recorded not in ("", source):
            remedy = f"use the same source and options, remove {out}, or change --out"
            raise ValueError(f"{folder} was made from {recorded}: {remedy}")
        if not recorded and folder.name in ("text", "bin") and folder.exists():
            raise ValueError(f"{folder} was not created by this command: remove it, or change --out")


@contextlib.contextmanager
def folder_with_source(folder: Path, source: str) -> Iterator[Path]:
    """Yields a temporary folder, and on success records the source in it and renames it to ``folder``."""
    print(f"Preparing {folder}", flush=True)
    with atomic_folder(folder) as part:
        yield part
        write_source(part, source)


def write_source(folder: Path, source: str) -> None:
    """Records in a folder the source of its content."""
    (folder / SOURCE_FILE).write_text(f"{source}\n")


def read_source(folder: Path) -> str:
    """Returns the source recorded in a folder, or an empty string if there is no record."""
    file = folder / SOURCE_FILE
    return file.read_text(errors="replace").strip() if file.is_file() else ""
