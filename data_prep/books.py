"""Books in GPT-2's byte pairs -> fairseq's binaries.

A folder's own *train.txt, *valid.txt and *test.txt are its splits; without them whole books are drawn, about
98% for training, 1% for validation and 1% for test. BookCorpus (Zhu et al. 2015) comes through the Hugging
Face package datasets, which is installed apart; it has no splits and does not mark its books, and is cut at
98% and 99% of its lines.
"""

import hashlib
import re
from pathlib import Path

from data_prep import hub
from data_prep.binarise import SPLITS, join
from data_prep.door import check_text
from data_prep.fetch import SOURCES
from data_prep.gpt2_bpe import InBytePairs

FACTS = SOURCES["bookcorpus"]
INSTEAD = "a folder of books"


class Books(InBytePairs):
    """BookCorpus, or a folder of books; ``found``: its books by split."""

    published = FACTS["dataset"]
    accepts = "plain-text books, *.txt (default: BookCorpus, through the package datasets)"
    task = "language_modeling"

    def check(self, args):
        if args.source is None:
            return hub.check_package(FACTS, INSTEAD)
        books = find_books(args.source)
        for book in (book for files in books.values() for book in files):
            check_text(book)
        return books

    def write_text(self, args, found, folder):
        if found is None:
            hub.write_texts(FACTS, folder, INSTEAD, split_of)
        for split, books in (found or {}).items():
            join(books, folder / f"{split}.txt")


def split_of(i: int, lines: int) -> str:
    """Returns which text BookCorpus's i-th line is for: the first 98% for training, the last for test."""
    share = lines // 100
    return "train" if i < lines - 2 * share else "valid" if i < lines - share else "test"


def find_books(folder: Path) -> dict[str, list[Path]]:
    """Returns {split: its files} of a folder with books."""
    books = sorted(folder.glob("*.txt"))
    named = {split: [b for b in books if re.search(rf"(^|[._-]){split}\.txt$", b.name)] for split in SPLITS}
    if any(named.values()):
        for split, files in named.items():
            if not files:
                raise ValueError(f"{folder} has splits, but no file that ends in {split}.txt")
        return named
    if len(books) < len(SPLITS):
        raise ValueError(f"{folder} has {len(books)} *.txt: one for each of train, valid and test is needed")
    return draw(books)


def draw(books: list[Path]) -> dict[str, list[Path]]:
    """Returns {split: books}: one in a hundred, at least one, for valid and as many for test.

    A hash of the file's name draws: always the same ones, whatever the folder's order.
    """
    drawn = sorted(books, key=lambda book: hashlib.sha256(book.name.encode()).hexdigest())
    share = max(1, len(books) // 100)
    parts = {"valid": drawn[:share], "test": drawn[share : 2 * share], "train": drawn[2 * share :]}
    return {split: sorted(parts[split]) for split in SPLITS}
