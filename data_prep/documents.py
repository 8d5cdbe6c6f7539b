"""Documents in the files that people have: text, JSON Lines, CSV, Parquet and Arrow, also compressed.

A file is read one document at a time, so that memory does not depend on its size.
"""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from data_prep.validation import is_unicode, usable_rows
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_regular, decoded_lines, visible_files

OTHER_COLUMN = "pass another --column"
BATCH = 1000  # rows of a Parquet file that are read at once
TEXT = ".txt"
ZSTD = ".zst"


def find_documents(source: Path) -> list[Path]:
    """Returns the files with documents: ``source`` itself, or those in the folder, sorted by path.

    Raises:
        UserError: if no file has a format of ``FORMATS``.
    """
    files = [source] if source.is_file() else visible_files(source)
    found = [path for path in files if _format(path) in FORMATS]
    if not found:
        formats = ", ".join(FORMATS)
        raise UserError(f"{source} has no files with documents: expected {formats}, or these as .gz or .zst")
    return found


def read_documents(path: Path, column: str, is_single: bool) -> Iterator[Iterable[str]]:
    """Yields the lines of each document of a file; the lines of one must be read before the next.

    A text file is one document. If it is the only file, blank lines separate its documents.

    Args:
        path: a file of :func:`find_documents`.
        column: the name of the column, or of the key of JSON objects, with the text.
        is_single: whether the file is the only one.

    Raises:
        UserError: if the file is damaged, lacks the column, or has more broken than sound rows.
    """
    if _format(path) == TEXT:
        if is_single:
            yield from _paragraph_blocks(path)
        else:
            yield _lines(path)
        return
    for text in usable_rows(FORMATS[_format(path)](path, column), _checked, path.name):
        yield text.split("\n")


def _format(path: Path) -> str:
    """Returns the suffix of a file in lower case, without that of its compression."""
    name = path.name.lower()
    for suffix in (".gz", ZSTD):
        name = name.removesuffix(suffix)
    return Path(name).suffix


def _checked(text):
    """Returns the text of a row; raises ValueError with the reason if it is not text."""
    if isinstance(text, ValueError):
        raise text
    if not isinstance(text, str):
        raise ValueError(f"has {str(text)[:40]} instead of a text")
    if not is_unicode(text):
        raise ValueError("has unpaired surrogates")
    return text


@contextmanager
def _binary(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading, decompressed; a damaged compressed file raises a UserError."""
    check_regular(path)
    suffix = path.suffix.lower()
    if suffix == ".gz":
        with _damage(path, EOFError, gzip.BadGzipFile, zlib.error), gzip.open(path) as file:
            yield file
    elif suffix == ZSTD:
        with _required_package(path):
            import zstandard
        with _damage(path, zstandard.ZstdError), zstandard.open(path, "rb") as file:
            yield io.BufferedReader(file)
    else:
        with path.open("rb") as file:
            yield file


@contextmanager
def _damage(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Turns ``errors``, which reading a damaged file raises, into a UserError."""
    try:
        yield
    except errors as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is damaged ({reason}): copy it again") from None


@contextmanager
def _required_package(path: Path) -> Iterator[None]:
    """Turns the error of importing an optional package, which reads a format, into a UserError."""
    try:
        yield
    except ImportError as error:
        package = error.name.partition(".")[0]
        remedy = f"run `pip install {package}`, which the extra [data] contains"
        raise UserError(f"{path.name} requires the package {package}: {remedy}") from None


def _lines(path: Path) -> Iterator[str]:
    with _binary(path) as file:
        yield from decoded_lines(file, str(path))


def _paragraph_blocks(path: Path) -> Iterator[list[str]]:
    """Yields the lines of each part of a text between blank lines."""
    block = []
    for line in _lines(path):
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _json_lines(path: Path, column: str) -> Iterator[object]:
    is_first = True
    for line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            yield ValueError("is not JSON")
            continue
        if not isinstance(row, dict):
            yield ValueError("is not a JSON object")
            continue
        if is_first:
            check_column(path, column, list(row))
            is_first = False
        yield row.get(column, ValueError(f"has no {column!r}"))


def _separated(delimiter: str, path: Path, column: str) -> Iterator[object]:
    csv.field_size_limit(sys.maxsize)  # by default, a text may have 131,072 characters
    with _binary(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        rows = csv.DictReader(text, delimiter=delimiter, strict=True)
        try:
            check_column(path, column, list(rows.fieldnames or ()))
            for row in rows:
                yield ValueError("has fewer fields than the header") if row[column] is None else row[column]
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text ({error.reason}): convert it to UTF-8") from None
        except csv.Error as error:
            wrong = f"{path} cannot be read (line {rows.line_num}: {error})"
            raise UserError(f"{wrong}: correct its quotes, or use JSON Lines") from None


def read_parquet(path: Path, columns: list[str], remedy: str) -> Iterator[list[list]]:
    """Yields the values of each of ``columns`` for at most ``BATCH`` rows of a Parquet file at once.

    If the file lacks a column, the message of the UserError ends in ``remedy``.
    """
    with _required_package(path):
        from pyarrow import ArrowException, parquet

    with path.open("rb") as file, _damage(path, ArrowException):
        table = parquet.ParquetFile(file)
        for column in columns:
            check_column(path, column, table.schema_arrow.names, remedy)
        for batch in table.iter_batches(BATCH, columns=columns):
            yield [batch.column(column).to_pylist() for column in columns]


def _parquet(path: Path, column: str) -> Iterator[object]:
    for [values] in read_parquet(path, [column], OTHER_COLUMN):
        yield from values


def _arrow(path: Path, column: str) -> Iterator[object]:
    """Reads a file of datasets' ``save_to_disk``, a stream of Arrow's batches."""
    with _required_package(path):
        from pyarrow import ArrowException, ipc

    with path.open("rb") as file, _damage(path, ArrowException):
        batches = ipc.open_stream(file)
        check_column(path, column, batches.schema.names)
        for batch in batches:
            yield from batch.column(column).to_pylist()


def check_column(path: Path, column: str, columns: list[str], remedy: str = OTHER_COLUMN) -> None:
    """Raises UserError if a file lacks the column."""
    if column not in columns:
        known = ", ".join(columns) or "none"
        raise UserError(f"{path.name} has no column {column!r}, only {known}: {remedy}")


FORMATS: dict[str, Callable[[Path, str], Iterator[object]] | None] = {
    TEXT: None,
    ".jsonl": _json_lines,
    ".csv": partial(_separated, ","),
    ".tsv": partial(_separated, "\t"),
    ".parquet": _parquet,
    ".arrow": _arrow,
}
"""{suffix of a file: function that yields the values of a column, or a ValueError for a broken row}

Text files have no columns.
"""
