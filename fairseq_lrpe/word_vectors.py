"""Files of word vectors in GloVe's format: lines of a word and the numbers of its vector."""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path


def width_of(path: Path) -> int:
    """Returns how wide a file's vectors are, by its first line; ValueError where that has none."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            first = next(lines, "")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): word vectors are needed") from None
    width = len(first.split(" ")) - 1
    vector_of(first, max(width, 2), f"{path}, line 1")
    return width


def lines_of(path: Path, width: int) -> Iterator[tuple[str, str]]:
    """Yields each line's word and the whole line, whose numbers :func:`vector_of` reads.

    A word may have spaces in it, as some of GloVe's have: the vector is the last fields. ValueError names a
    line that is too short or no UTF-8.
    """
    number = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                fields = line.rsplit(" ", width)
                if len(fields) != width + 1:
                    raise ValueError(f"{path}, line {number:,}: {_wanted(width)}")
                yield fields[0], line
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, after line {number:,}, is not UTF-8 text ({error})") from None


def vector_of(line: str, width: int, where: str) -> list[float]:
    """Returns the vector of a line; ValueError says ``where`` there is none of this ``width``."""
    try:
        vector = [float(field) for field in line.rstrip("\n").rsplit(" ", width)[1:]]
    except ValueError:
        vector = []
    if len(vector) != width or not all(map(isfinite, vector)):
        raise ValueError(f"{where}: {_wanted(width)}")
    return vector


def check_width(path: Path, width: int, remedy: str) -> None:
    """Refuses, by ValueError, a file that is missing or whose vectors have another ``width``."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: a file of word vectors in GloVe's format is needed")
    if (found := width_of(path)) != width:
        raise ValueError(f"{path} has vectors of width {found} and the embeddings have {width}: {remedy}")


def _wanted(width):
    return f"a word and {width} numbers are needed"
