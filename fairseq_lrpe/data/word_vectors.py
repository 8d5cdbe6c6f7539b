"""Word vectors in GloVe's text format: each line is a word and its numbers, separated by single spaces."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import byte_lines, file_exists


def dimension(path: Path) -> int:
    """Returns the dimension of a file's word vectors, according to its first line."""
    if not file_exists(path):
        raise UserError(f"{path} is missing: expected a file of word vectors in GloVe's format")
    with path.open("rb") as file:
        fields = next(byte_lines(file, str(path)), b"").rstrip().split(b" ")
    if len(fields) < 2:
        raise UserError(f"{path} line 1 is not a word and a vector: expected a file in GloVe's format")
    _numbers(fields[1:], path, 1)
    return len(fields) - 1


def read(path: Path, words: Iterable[str]) -> Iterator[tuple[str, np.ndarray, bytes]]:
    """Yields (word, vector, line of the file) for each of ``words`` that has a vector in a file.

    Words may contain spaces, as in GloVe's files. If a word has several vectors, the first is used.

    Raises:
        UserError: if a vector has another dimension than the first or invalid numbers, or if no word has a
            vector.
    """
    size = dimension(path)
    missing = {word.encode() for word in words}
    count = len(missing)
    with path.open("rb") as file:
        lines = tqdm(byte_lines(file, str(path)), path.name, unit="lines", disable=None, leave=False)
        for number, line in enumerate(lines, 1):
            fields = line.rstrip().split(b" ")
            if len(fields) - 1 < size or (len(fields) - 1 > size and _is_number(fields[-size - 1])):
                wrong = f"{len(fields) - 1} fields after its word instead of {size}"
                raise UserError(f"{path} line {number} has {wrong}, unlike line 1: correct it")
            word = b" ".join(fields[:-size])
            if word in missing:
                missing.remove(word)
                yield word.decode(), _numbers(fields[-size:], path, number), line
    if len(missing) == count:
        raise UserError(f"{path} has vectors for none of the {count:,} words: use another file")


def _numbers(fields, path, line):
    for field in fields:
        if not _is_number(field):
            shown = field[:20].decode(errors="replace")
            raise UserError(f"{path} line {line} has {shown!r} instead of a finite number: correct it")
    return np.array(fields, dtype="S").astype(np.float32)


def _is_number(field):
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False
