"""Vectors of words in GloVe's format: a line has a word and its numbers, with one blank between."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_prep.progress import AFTER


def width(path: Path) -> int:
    """Returns how many numbers the vector of the first line has, whose word must be without blanks."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: --vectors takes a file in GloVe's format")
    with path.open("rb") as file:
        fields = file.readline().rstrip().split(b" ")
    if len(fields) < 2:
        raise ValueError(
            f"{path} line 1 is no word with its vector: --vectors takes a file in GloVe's format"
        )
    numbers(fields[1:], path, 1)
    return len(fields) - 1


def select(path: Path, words: Sequence[str], target: Path) -> list[str]:
    """Returns those of the words that have a vector in ``path``, and writes their lines to ``target``.

    Some words of GloVe's have blanks, so that a vector is the last numbers of a line, as many as the first
    line has. The numbers are looked at where the word is one of ``words``: a file may have millions of lines.
    """
    size, missing = width(path), {word.encode() for word in words}
    shown = {"desc": f"reading {path.name}", "unit": "B", "unit_scale": True, "disable": None}
    with (
        path.open("rb") as file,
        target.open("wb") as out,
        tqdm(total=path.stat().st_size, delay=AFTER, leave=False, **shown) as bar,
    ):
        for number, line in enumerate(file, 1):
            bar.update(len(line))
            fields = line.rstrip().split(b" ")
            if len(fields) - 1 < size or (len(fields) - 1 > size and is_number(fields[-size - 1])):
                raise ValueError(
                    f"{path} line {number} has {len(fields) - 1} fields after its word instead of {size}, "
                    "as line 1 has"
                )
            if len(fields) - 1 == size and fields[0] in missing:
                numbers(fields[1:], path, number)
                missing.remove(fields[0])  # of a word that is there twice the first vector is taken
                out.write(b" ".join(fields) + b"\n")
    if len(missing) == len(words):
        raise ValueError(f"{path} has none of the training set's {len(words):,} words")
    return [word for word in words if word.encode() not in missing]


def numbers(fields: list[bytes], path: Path, line: int) -> None:
    """Raises ValueError unless all fields are numbers."""
    try:
        fine = np.isfinite(np.array(fields, dtype="S").astype(np.float32)).all()
    except ValueError:
        fine = False
    if not fine:
        wrong = next((field for field in fields if not is_number(field)), fields[0])
        shown = wrong[:20].decode(errors="replace")
        raise ValueError(f"{path} line {line} has {shown!r}, which is no number: a word's vector is needed")


def is_number(field: bytes) -> bool:
    """Whether a field is a finite number."""
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False
