"""The root of the repository, listing of folders, reading of files and of text, and atomic writes."""

import codecs
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fairseq_lrpe.utils.errors import UserError

PLUGIN = Path(__file__).resolve().parents[1]
"""Folder of the package, the value of fairseq's --user-dir."""
_IS_WHEEL = (PLUGIN / "configs").is_dir()  # setup.py moves the folder
REPOSITORY = Path.cwd() if _IS_WHEEL else PLUGIN.parent
"""Root of the repository, or the current folder with a wheel; paths in YAML files are relative to it."""
CONFIGS = (PLUGIN if _IS_WHEEL else REPOSITORY) / "configs"
"""Folder of the experiments, tables and published numbers."""
PREPARE = "lrpe prepare" if _IS_WHEEL else "bash data_prep/prepare.sh"
"""Command that prepares a corpus, in messages."""
MAX_BYTES = 1 << 28
"""Maximum size in bytes of a file that is read into memory at once."""
ADDED_BY_SYSTEMS = ("__MACOSX", "Thumbs.db", "desktop.ini")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # write errors without a file name


def display_path(path: Path) -> Path:
    return path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path


def check_colon(path: Path) -> None:
    """Raises a UserError if fairseq would split a path at a colon."""
    if os.pathsep in str(display_path(path)):
        raise UserError(f"fairseq splits the path {path} at {os.pathsep!r}: use another folder")


def check_control_characters(text: str, name: str) -> None:
    """Raises a UserError for control characters such as line breaks, which would end a line in a script."""
    if match := CONTROL.search(text):
        raise UserError(f"{name} contains the control character {match[0]!r}: use a name without it")


def is_hidden(path: str) -> bool:
    """Returns whether a part of a relative path is hidden, such as ``._NAME`` or ``.ipynb_checkpoints``.

    Files that macOS and Windows add, ``__MACOSX``, ``Thumbs.db`` and ``desktop.ini``, are hidden, too.
    """
    for part in path.split("/"):
        is_dots = not part.strip(".")  # "." and ".." are the folder itself and its parent
        if part in ADDED_BY_SYSTEMS or (part.startswith(".") and not is_dots):
            return True
    return False


def visible_entries(folder: Path) -> list[Path]:
    return list(map(Path, _entries(folder)))


def visible_files(folder: Path, outer: tuple = ()) -> Iterator[Path]:
    """Yields the files in a folder and its subfolders, sorted by path, without hidden files and folders.

    Symbolic links are followed; ``outer`` identifies the folders that contain this one.

    Raises:
        UserError: if a symbolic link leads to nothing, or to a folder in its own path.
    """
    status = os.stat(folder)
    outer = (*outer, (status.st_dev, status.st_ino))
    if outer[-1] in outer[:-1]:
        raise UserError(f"{folder} is reached again by a symbolic link in this path: remove the link")
    for entry in _entries(folder):
        if entry.is_dir():
            yield from visible_files(Path(entry), outer)
        elif entry.is_file():
            yield Path(entry)


def _entries(folder):
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not is_hidden(entry.name)]
    visible.sort(key=lambda entry: entry.name)
    for entry in visible:
        if entry.is_symlink() and not os.path.exists(entry):
            raise UserError(f"{entry.path} is a symbolic link that leads to nothing: repair or remove it")
    return visible


def check_regular(path: Path) -> None:
    """Raises a UserError if a path is a folder, pipe, socket or device instead of a regular file."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: replace it with a regular file")


def file_exists(path: Path) -> bool:
    """Returns whether a file exists; raises a UserError like :func:`check_regular`."""
    check_regular(path)
    return path.exists()


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    if not file_exists(path):
        raise UserError(f"{path} is missing")
    if path.stat().st_size > limit:
        raise UserError(f"{path} exceeds the limit of {limit:,} bytes")
    return path.read_bytes()


def without_mark(content: bytes, name: str) -> bytes:
    """Returns a text without the byte order mark of UTF-8; raises a UserError for that of UTF-16."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{name} is not UTF-8 text but UTF-16: convert it to UTF-8, for example with "
            "`iconv -f UTF-16 -t UTF-8`"
        )
    return content.removeprefix(codecs.BOM_UTF8)


def byte_lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    r"""Yields the lines of an open file without line endings (\n or \r\n) and without a byte order mark."""
    for number, line in enumerate(file):
        line = line if number else without_mark(line, name)
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 file like :func:`byte_lines`; raises a UserError for other encodings."""
    check_regular(path)
    with path.open("rb") as file:
        yield from decoded_lines(file, str(path))


def decoded_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Yields the lines of an open UTF-8 file, called ``name`` in messages, like :func:`read_lines`."""
    for number, line in enumerate(byte_lines(file, name), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            wrong = f"{name} is not UTF-8 text (line {number}: {error.reason})"
            raise UserError(f"{wrong}: convert it to UTF-8") from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in lines)


def write_atomic(path: Path, content: str | bytes) -> None:
    with atomic_file(path) as part:
        part.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields the path of a file PATH.part, which is renamed to ``path`` on success and removed on error."""
    part = path.with_name(path.name + ".part")
    try:
        with named_write_errors(path):
            yield part
            os.replace(part, path)
    except BaseException:
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        raise


@contextmanager
def named_write_errors(path: Path) -> Iterator[None]:
    """Adds a path to errors of a full disk that the block raises, which lack a file name."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS and not error.filename:
            error.filename = str(path)
        raise


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yields a new empty folder, FOLDER.part, that is renamed to ``folder`` on success."""
    with atomic_file(folder) as part:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part


def save_figure(figure, path: Path, **options) -> None:
    with output_folder(path.parent), atomic_file(path) as part:
        figure.savefig(part, format=path.suffix[1:], **options)


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Creates a writable folder and its parents; on exit, removes the created folders that are empty."""
    created = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UserError(
                f"{folder} is not a writable folder ({error.strerror}): choose another folder"
            ) from None
        yield
    finally:
        for path in created:
            with suppress(OSError):
                path.rmdir()


def is_utf8(text: str) -> bool:
    """Returns whether a text can be encoded; Python reads bytes that are not UTF-8 as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
