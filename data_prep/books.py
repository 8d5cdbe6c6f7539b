"""Books in GPT-2's byte pairs -> fairseq's binaries (``data_prep/books.sh``).

A folder's own *train.txt, *valid.txt and *test.txt are its splits; without them whole books are drawn, about
98% for training, 1% for validation and 1% for test. BookCorpus, which has no splits and does not mark its
books, is cut at 98% and 99% of its lines.
"""

import argparse
import hashlib
import os
import re
from pathlib import Path

from data_prep import binarise, bookcorpus, door, gpt2_bpe
from data_prep.binarise import DATA, SOURCES, SPLITS

VOCABULARY = SOURCES["gpt2_bpe"]


def find_books(folder):
    """{split: its files} of a folder with books."""
    books = sorted(folder.glob("*.txt"))
    named = {split: [b for b in books if re.search(rf"(^|[._-]){split}\.txt$", b.name)] for split in SPLITS}
    if any(named.values()):
        for split, files in named.items():
            if not files:
                raise door.BadInput(f"{folder} has splits, but no file that ends in {split}.txt")
        return named
    if len(books) < len(SPLITS):
        raise door.BadInput(
            f"{folder} has {len(books)} *.txt: one for each of train, valid and test is needed"
        )
    return draw(books)


def draw(books):
    """{split: books}: one in a hundred, at least one, for valid and as many for test.

    A hash of the file's name draws: always the same ones, whatever the folder's order.
    """
    drawn = sorted(books, key=lambda book: hashlib.sha256(book.name.encode()).hexdigest())
    share = max(1, len(books) // 100)
    parts = {"valid": drawn[:share], "test": drawn[share : 2 * share], "train": drawn[2 * share :]}
    return {split: sorted(parts[split]) for split in SPLITS}


def gather(books, folder):
    """folder/<split>.txt, the split's books one after the other."""
    for split, files in books.items():
        with (folder / f"{split}.txt").open("wb") as out:
            for book in files:
                content = book.read_bytes()
                out.write(content if content.endswith(b"\n") else content + b"\n")


def write_text(books, folder, source):
    """{split: folder/<split>.txt} of ``books``, or of BookCorpus if None; the folder appears whole."""
    if not folder.is_dir():
        with door.whole_folder(folder, source) as part:
            if books is None:
                bookcorpus.write(part)
            else:
                gather(books, part)
    return {split: folder / f"{split}.txt" for split in books or SPLITS}


def encode(texts, out, workers):
    """{split: out/<split>.bpe} of ``texts``; those of an earlier run are kept."""
    encoded = {split: out / f"{split}.bpe" for split in texts}
    for split, path in encoded.items():
        if not path.exists():
            gpt2_bpe.encode(texts[split], path, out / "gpt2_bpe", workers)
    return encoded


def binarise_bpe(encoded, out, source, workers, name="bin"):
    """``out``/``name`` of byte pairs, with GPT-2's dictionary."""
    dictionary = out / "gpt2_bpe" / "dict.txt"
    binarise.binarise(encoded, out, source, "--srcdict", dictionary, workers=workers, name=name)


def add_options(parser, out):
    """The options of every corpus in byte pairs."""
    parser.add_argument(
        "--bpe",
        type=Path,
        metavar="FOLDER",
        help="encoder.json, vocab.bpe and dict.txt of GPT-2's byte pairs (default: download them)",
    )
    parser.add_argument("--out", type=Path, default=out, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")


def check_source(source):
    """(the books by split, the source's name); BadInput if there is no usable one."""
    if source is None:
        bookcorpus.check()
        return None, SOURCES["bookcorpus"]["dataset"]
    if not source.is_dir():
        raise door.BadInput(f"{source} is not a folder: --from takes one with books, *.txt")
    books = find_books(source)
    for book in (book for files in books.values() for book in files):
        door.check_text(book)
    return books, source.resolve()


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="books.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="plain-text books, *.txt (default: BookCorpus, through the package datasets)",
    )
    add_options(parser, DATA / "books")
    args = parser.parse_args(arguments)
    with door.one_sentence("books"):
        door.check_workers(args.workers)
        if args.source or not binarise.finished(args.out):
            books, name = check_source(args.source)
            door.check_out(args.out, name)
        if binarise.finished(args.out):
            print(f"already there: {args.out / 'bin'}")
        else:
            gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe)
            texts = write_text(books, args.out / "text", name)
            encoded = encode(texts, args.out, args.workers)
            binarise_bpe(encoded, args.out, name, args.workers)
        size = binarise.vocabulary_size(args.out / "bin")
        expected = VOCABULARY["vocabulary"]
        same = (
            f"not GPT-2's {expected:,}"
            if size != expected
            else (
                f"with the <mask> of fairseq's masked_lm the papers' {VOCABULARY['vocabulary_with_mask']:,}"
            )
        )
        binarise.report(args.out, f"{size:,} types; {same}")


if __name__ == "__main__":
    main()
