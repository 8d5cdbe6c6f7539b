"""The repository's root, and files and folders that appear whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Yields the path of a file to write, ``path``.part, that takes the name ``path`` at the end."""
    part = path.with_name(path.name + ".part")
    yield part
    os.replace(part, path)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a new empty folder to fill, ``folder``.part, that takes the name ``folder`` at the end."""
    with whole_file(folder) as part:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
