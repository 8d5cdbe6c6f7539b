"""Splits of documents: those that file names state, and others that are drawn at random."""

import random
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from data_prep.binarize import SPLITS, split_files
from data_prep.documents import find_documents, read_documents
from data_prep.parallel import progress
from fairseq_lrpe.utils.errors import UserError

NAMES = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
"""{name of a split in the name of a file or a folder: split}"""


def named_split(path: Path, source: Path) -> str | None:
    """Returns the split that the name of a file, or of a folder between it and ``source``, states, or None.

    Examples are train.jsonl, wiki.valid.txt, test-00000-of-00001.parquet and validation/data-0.arrow.
    """
    for part in reversed(path.relative_to(source).parts):
        for word in re.split(r"[._-]", part):
            if word in NAMES:
                return NAMES[word]
    return None


def files_by_split(source: Path) -> dict[str, list[Path]]:
    """Returns {split: files with documents} of a source; without a name of a training file, all are "train".

    If the names of some files state splits, others are ignored.
    """
    files = find_documents(source)
    named: dict[str, list[Path]] = {}
    for path in files:
        split = named_split(path, source)
        if split is not None:
            named.setdefault(split, []).append(path)
    if "train" not in named:
        return {"train": files}
    ignored = len(files) - sum(map(len, named.values()))
    if ignored:
        print(f"ignored {ignored:,} files whose names state no split", flush=True)
    return {split: named[split] for split in SPLITS if split in named}


def write_documents(
    source: Path, folder: Path, column: str, shares: dict[str, float], seed: int
) -> dict[str, int]:
    """Writes documents to train.txt, valid.txt and test.txt: lines without blank ones, then a blank line.

    The words of a line are separated by single spaces. A document is used for validation or test with the
    probability ``shares[split]``, unless file names state the split.

    Args:
        source: a file, or a folder with files, that :func:`find_documents` accepts.
        folder: the folder of the text files.
        column: the column with the text, except in text files.
        shares: {"valid": probability, "test": probability}.
        seed: the seed of the random numbers.

    Returns:
        {split: number of documents}.

    Raises:
        UserError: if a split has no documents, or if a file cannot be read.
    """
    given = files_by_split(source)
    drawn = {split: share for split, share in shares.items() if split not in given}
    counts = dict.fromkeys(SPLITS, 0)
    empty = 0
    with ExitStack() as stack:
        files = {}
        for split, path in split_files(folder).items():
            files[split] = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        for split, document in _documents(given, column, drawn, random.Random(seed)):
            if _write(document, files[split]):
                counts[split] += 1
            else:
                empty += 1
    _check_counts(counts, source)
    if empty:
        print(f"left out {empty:,} empty documents", flush=True)
    return counts


def _documents(
    given: dict[str, list[Path]], column: str, drawn: dict[str, float], numbers: random.Random
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yields (split, lines) of each document."""
    is_single = sum(map(len, given.values())) == 1
    for split, paths in given.items():
        for path in paths:
            for document in progress(read_documents(path, column, is_single), path.name, "documents"):
                yield (_draw(drawn, numbers) if split == "train" else split), document


def _draw(shares, numbers):
    """Returns a split with a probability of ``shares``, or else "train"."""
    number = numbers.random()
    for split, share in shares.items():
        if number < share:
            return split
        number -= share
    return "train"


def _write(lines: Iterable[str], file: IO[str]) -> bool:
    """Writes a document to a file, and returns whether it has any text."""
    is_written = False
    for line in lines:
        words = line.split()
        if words:
            file.write(f"{' '.join(words)}\n")
            is_written = True
    if is_written:
        file.write("\n")
    return is_written


def _check_counts(counts, source):
    for split, count in counts.items():
        if count == 0:
            total = sum(counts.values())
            remedy = "pass more documents" if split == "train" else f"pass a larger --{split}, such as 0.1"
            wrong = f"{source} has documents with text: {total:,}, none of them in {split}"
            raise UserError(f"{wrong}: {remedy}")
