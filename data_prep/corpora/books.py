"""BookCorpus (Zhu et al. 2015), or other books."""

import hashlib
import re
from pathlib import Path

from data_prep.binarize import SPLITS, concatenate
from data_prep.text_corpus import BytePairCorpus, write_dataset
from data_prep.validation import check_text
from fairseq_lrpe.utils.files import visible_entries


class Books(BytePairCorpus):
    """BookCorpus or other books in GPT-2 BPE, for fairseq's language_modeling.

    If file names in the folder --from end in train.txt, valid.txt or test.txt, they determine the splits.
    Otherwise whole books are assigned to the splits: 98% for training, 1% for validation and 1% for test.
    BookCorpus (Zhu et al. 2015) is loaded with the optional Hugging Face package datasets. It has neither
    splits nor book boundaries, and is split after 98% and 99% of its lines.
    """

    accepts = "a folder with books as text files *.txt (default: BookCorpus, with the package datasets)"
    task = "language_modeling"

    def write_text(self, args, folder):
        if args.source is None:
            return write_dataset(self.facts, folder, split_of)
        for split, books in find_books(args.source).items():
            for book in books:
                check_text(book)
            concatenate(books, folder / f"{split}.txt")


def split_of(i: int, lines: int) -> str:
    """Returns the split of line i of BookCorpus: "train" for the first 98%, then "valid", then "test"."""
    share = lines // 100
    return "train" if i < lines - 2 * share else "valid" if i < lines - share else "test"


def find_books(folder: Path) -> dict[str, list[Path]]:
    """Returns {split: files}: those whose names end in the split, or else by a hash of the names.

    Raises:
        ValueError: If a split would be empty.
    """
    books = [path for path in visible_entries(folder) if path.suffix == ".txt"]
    parts = {split: [b for b in books if re.search(rf"(^|[._-]){split}\.txt$", b.name)] for split in SPLITS}
    if not any(parts.values()):
        ordered = sorted(books, key=lambda book: hashlib.sha256(book.name.encode()).hexdigest())
        share = max(1, len(books) // 100)
        ends = {"valid": (0, share), "test": (share, 2 * share), "train": (2 * share, len(books))}
        parts = {split: sorted(ordered[slice(*ends[split])]) for split in SPLITS}
    if empty := [split for split in SPLITS if not parts[split]]:
        raise ValueError(f"{folder} has {len(books)} *.txt files, but none for {empty[0]}: see --help")
    return parts
