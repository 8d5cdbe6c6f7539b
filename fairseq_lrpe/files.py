"""The repository's root, and files and folders that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
"""Where commands run: relative paths of data, configs and results are meant from here."""


def readable(path: Path) -> Path:
    """Returns the path as seen from the repository if it is inside, else as it is."""
    return path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, that takes its name once it is whole."""
    with whole_file(path) as part:
        part.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the path of a file to write, ``path``.part, that takes the name ``path`` at a good end.

    At a bad end it is removed.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a new empty folder to fill, ``folder``.part, that takes the name ``folder`` at the end."""
    with whole_file(folder) as part:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Makes a folder to write to; at the end it goes again if nothing is in it, and new parents of it too.

    Raises:
        ValueError: nothing can be written there.
    """
    new = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ValueError(
                f"{folder} is no folder to write to ({error.strerror}): name another one"
            ) from None
        yield
    finally:
        for path in new:
            with suppress(OSError):
                path.rmdir()
