"""Books in GPT-2's byte pairs -> fairseq's binaries.

A folder's own *train.txt, *valid.txt and *test.txt are its splits; without them whole books are drawn, about
98% for training, 1% for validation and 1% for test. BookCorpus (Zhu et al. 2015) comes through the Hugging
Face package datasets, which is installed apart; it has no splits and does not mark its books, and is cut at
98% and 99% of its lines.
"""

import hashlib
import importlib.util
import re
from pathlib import Path

from tqdm import tqdm

from data_prep.binarise import SPLITS, join
from data_prep.door import check_text
from data_prep.fetch import SOURCES
from data_prep.gpt2_bpe import InBytePairs

SOURCE = SOURCES["bookcorpus"]
ROWS = 10_000  # read at a time


class Books(InBytePairs):
    """BookCorpus, or a folder of books; ``found``: its books by split."""

    published = SOURCE["dataset"]
    accepts = "plain-text books, *.txt (default: BookCorpus, through the package datasets)"
    task = "language_modeling"

    def check(self, args):
        if args.source is None:
            if importlib.util.find_spec("datasets") is None:
                raise ValueError(
                    "BookCorpus comes through the package datasets, which is not installed: "
                    "run `pip install datasets`, or give a folder of books with --from"
                )
            return None
        books = find_books(args.source)
        for book in (book for files in books.values() for book in files):
            check_text(book)
        return books

    def write_text(self, args, found, folder):
        if found is None:
            write_bookcorpus(folder)
        for split, books in (found or {}).items():
            join(books, folder / f"{split}.txt")


def write_bookcorpus(folder: Path) -> None:
    """Writes train.txt, the first 98% of the lines, valid.txt, the next 1%, and test.txt, the last."""
    try:
        from datasets import load_dataset

        corpus = load_dataset(SOURCE["dataset"], revision=SOURCE["revision"], split="train")
    except Exception as error:  # of the network, the hub or the package: whatever it is, only --from helps
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{SOURCE['dataset']} could not be loaded ({reason[0]}): "
            "try again later, or give a folder of books with --from"
        ) from error
    if len(corpus) != SOURCE["lines"]:
        print(f"{SOURCE['dataset']} has {len(corpus):,} lines now, not the {SOURCE['lines']:,} of BookCorpus")
    share = len(corpus) // 100
    ends = [0, len(corpus) - 2 * share, len(corpus) - share, len(corpus)]
    for split, first, end in zip(SPLITS, ends[:-1], ends[1:], strict=True):
        with (folder / f"{split}.txt").open("w", encoding="utf-8") as file:
            for start in tqdm(range(first, end, ROWS), desc=f"{split}.txt", disable=None):
                rows = corpus[start : min(start + ROWS, end)]["text"]
                file.writelines(f"{line}\n" for line in rows)


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
