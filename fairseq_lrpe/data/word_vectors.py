"""Word vectors in GloVe's text format: each line is a word and its numbers, separated by single spaces."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import byte_lines

DELAY = 5  # seconds until the progress bar is shown


def dimension(path: Path) -> int:
    """Returns the dimension of a file's word vectors, according to its first line.

    Raises:
        UserError: If the file is missing, or the first line is not a word without spaces and a vector.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: expected a file of word vectors in GloVe's format")
    with path.open("rb") as file:
        fields = next(byte_lines(file, str(path)), b"").rstrip().split(b" ")
    if len(fields) < 2:
        raise UserError(f"{path} line 1 is not a word and a vector: expected a file in GloVe's format")
    _numbers(fields[1:], path, 1)
    return len(fields) - 1


def read(path: Path, words: Iterable[str]) -> Iterator[tuple[str, np.ndarray, bytes]]:
    """Yields (word, vector, line of the file) for each of ``words`` that has a vector in a file.

    Words may contain spaces, as in GloVe's files. If a word has several vectors, the first is used. Only the
    vectors of the requested words are parsed.

    Raises:
        UserError: If a line has a vector of another dimension than the first line, or no word has a vector.
    """
    size, missing = dimension(path), {word.encode() for word in words}
    count = len(missing)
    bar = {"desc": f"reading {path.name}", "unit": "B", "unit_scale": True, "disable": None, "delay": DELAY}
    with path.open("rb") as file, tqdm(total=path.stat().st_size, leave=False, **bar) as shown:
        for number, line in enumerate(byte_lines(file, str(path)), 1):
            shown.update(len(line) + 1)
            fields = line.rstrip().split(b" ")
            if len(fields) - 1 < size or (len(fields) - 1 > size and _is_number(fields[-size - 1])):
                found = f"{len(fields) - 1} fields after its word instead of {size}"
                raise UserError(f"{path} line {number} has {found}, unlike line 1")
            word = b" ".join(fields[:-size])
            if word in missing:
                missing.remove(word)
                yield word.decode(), _numbers(fields[-size:], path, number), line
    if len(missing) == count:
        raise UserError(f"{path} has vectors for none of the {count:,} words: use another file")


def _numbers(fields, path, line):
    """Returns a vector parsed from byte strings; raises UserError if a number is not finite."""
    try:
        vector = np.array(fields, dtype="S").astype(np.float32)
    except ValueError:
        vector = np.array([np.nan])
    if not np.isfinite(vector).all():
        wrong = next((field for field in fields if not _is_number(field)), fields[0])
        shown = wrong[:20].decode(errors="replace")
        raise UserError(f"{path} line {line} has {shown!r} instead of a finite number")
    return vector


def _is_number(field):
    """Returns whether a field is a finite number."""
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False
