"""Word vectors in GloVe's format: lines of a word and its numbers, separated by single spaces."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_lrpe.utils.files import iterate_lines

DELAY = 5  # seconds until progress is shown


def dimension(path: Path) -> int:
    """Returns the dimension of the first vector, whose word must not contain spaces."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: a file of word vectors in GloVe's format is needed")
    with path.open("rb") as file:
        fields = next(iterate_lines(file), b"").rstrip().split(b" ")
    if len(fields) < 2:
        raise ValueError(f"{path} line 1 is no word with its vector: a file in GloVe's format is needed")
    _numbers(fields[1:], path, 1)
    return len(fields) - 1


def read(path: Path, words: Iterable[str]) -> Iterator[tuple[str, np.ndarray, bytes]]:
    """Yields (word, vector, line) of those ``words`` that have a vector in a file.

    Words may contain spaces, as in GloVe: the vector is the last fields of a line. Numbers are parsed only
    for requested words; the first of several vectors of a word is used.

    Raises:
        ValueError: If a line has no vector of the expected dimension, or no word has a vector.
    """
    size, missing = dimension(path), {word.encode() for word in words}
    count = len(missing)
    bar = {"desc": f"reading {path.name}", "unit": "B", "unit_scale": True, "disable": None, "delay": DELAY}
    with path.open("rb") as file, tqdm(total=path.stat().st_size, leave=False, **bar) as shown:
        for number, line in enumerate(iterate_lines(file), 1):
            shown.update(len(line))
            fields = line.rstrip().split(b" ")
            if len(fields) - 1 < size or (len(fields) - 1 > size and _is_number(fields[-size - 1])):
                found = f"{len(fields) - 1} fields after its word instead of {size}"
                raise ValueError(f"{path} line {number} has {found}, as line 1 has")
            word = b" ".join(fields[:-size])
            if word in missing:
                missing.remove(word)
                yield word.decode(), _numbers(fields[-size:], path, number), line
    if len(missing) == count:
        raise ValueError(f"{path} has none of the {count:,} words: other vectors are needed")


def _numbers(fields, path, line):
    """Parses a vector of finite numbers."""
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
    """Returns whether a field is a finite number."""
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False
