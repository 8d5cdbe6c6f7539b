"""Books in GPT-2 BPE, for fairseq's masked_lm.

The splits are *train.txt, *valid.txt and *test.txt of a folder; without them, whole books are assigned, about
98% for training, 1% for validation and 1% for test. BookCorpus (Zhu et al. 2015) is loaded with the optional
Hugging Face package datasets; it has neither splits nor book boundaries and is split at 98% and 99% of its
lines.
"""

import hashlib
import re
from pathlib import Path

from data_prep import hub
from data_prep.binarize import SPLITS, concatenate
from data_prep.gpt2_bpe import BytePairCorpus
from data_prep.validation import check_text


class Books(BytePairCorpus):
    """BookCorpus, or a folder of books; ``inputs``: the dataset, or {split: books} of the folder."""

    accepts = "plain-text books, *.txt (default: BookCorpus, through the package datasets)"
    task = "language_modeling"

    @property
    def published(self):
        return self.facts["dataset"]

    def check(self, args):
        if args.source is None:
            return None if (args.out / "text").is_dir() else hub.load(self.facts, "a folder of books")
        books = find_books(args.source)
        for book in (book for files in books.values() for book in files):
            check_text(book)
        return books

    def write_text(self, args, inputs, folder):
        if args.source is None:
            return hub.write_texts(inputs, self.facts, folder, split_of)
        for split, books in inputs.items():
            concatenate(books, folder / f"{split}.txt")


def split_of(i: int, lines: int) -> str:
    """Returns the split of BookCorpus's i-th line: first 98% train, then valid, last test."""
    share = lines // 100
    return "train" if i < lines - 2 * share else "valid" if i < lines - share else "test"


def find_books(folder: Path) -> dict[str, list[Path]]:
    """Returns {split: files} of a folder with books."""
    books = sorted(folder.glob("*.txt"))
    named = {split: [b for b in books if re.search(rf"(^|[._-]){split}\.txt$", b.name)] for split in SPLITS}
    if any(named.values()):
        for split, files in named.items():
            if not files:
                raise ValueError(f"{folder} has splits, but no file that ends in {split}.txt")
        return named
    if len(books) < len(SPLITS):
        raise ValueError(f"{folder} has {len(books)} *.txt: one for each of train, valid and test is needed")
    return split_books(books)


def split_books(books: list[Path]) -> dict[str, list[Path]]:
    """Splits books by a hash of their names: 1% (at least one) for valid, 1% for test, the rest for train."""
    ordered = sorted(books, key=lambda book: hashlib.sha256(book.name.encode()).hexdigest())
    share = max(1, len(books) // 100)
    parts = {"valid": ordered[:share], "test": ordered[share : 2 * share], "train": ordered[2 * share :]}
    return {split: sorted(parts[split]) for split in SPLITS}
