"""Vectors of words in GloVe's format: a line has a word and its numbers, with one blank between."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

AFTER = 5  # seconds, from which on it is shown how much of a file is read


def width(path: Path) -> int:
    """Returns how many numbers the vector of the first line has, whose word must be without blanks."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: a file of word vectors in GloVe's format is needed")
    with path.open("rb") as file:
        fields = file.readline().rstrip().split(b" ")
    if len(fields) < 2:
        raise ValueError(f"{path} line 1 is no word with its vector: a file in GloVe's format is needed")
    _numbers(fields[1:], path, 1)
    return len(fields) - 1


def read(path: Path, words: Iterable[str]) -> Iterator[tuple[str, np.ndarray, bytes]]:
    """Yields (word, vector, line) of those of the words that have a vector in a file.

    Some words of GloVe's have blanks, so that a vector is the last numbers of a line, as many as the first
    line has. The numbers are looked at where the word is one of ``words``: a file may have millions of lines.
    Of a word that is there twice the first vector is taken. ValueError names a line that is no word with
    such a vector, or says that there is none of the words.
    """
    size, missing = width(path), {word.encode() for word in words}
    wanted = len(missing)
    bar = {"desc": f"reading {path.name}", "unit": "B", "unit_scale": True, "disable": None, "delay": AFTER}
    with path.open("rb") as file, tqdm(total=path.stat().st_size, leave=False, **bar) as shown:
        for number, line in enumerate(file, 1):
            shown.update(len(line))
            fields = line.rstrip().split(b" ")
            if len(fields) - 1 < size or (len(fields) - 1 > size and _is_number(fields[-size - 1])):
                raise ValueError(
                    f"{path} line {number} has {len(fields) - 1} fields after its word instead of {size}, "
                    "as line 1 has"
                )
            word = b" ".join(fields[:-size])
            if word in missing:
                missing.remove(word)
                yield word.decode(), _numbers(fields[-size:], path, number), line
    if len(missing) == wanted:
        raise ValueError(f"{path} has none of the {wanted:,} words: other vectors are needed")


def _numbers(fields, path, line):
    """The vector of a line; ValueError unless all fields are numbers."""
    try:
        vector = np.array(fields, dtype="S").astype(np.float32)
    except ValueError:
        vector = np.array([np.nan])
    if not np.isfinite(vector).all():
        wrong = next((field for field in fields if not _is_number(field)), fields[0])
        shown = wrong[:20].decode(errors="replace")
        raise ValueError(f"{path} line {line} has {shown!r}, which is no number: a word's vector is needed")
    return vector


def _is_number(field):
    """Whether a field is a finite number."""
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False
