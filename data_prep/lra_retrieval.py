"""Pairs of documents by bytes, does one belong to the other -> binaries for our task classification.

lra_retrieval is Long-Range Arena's Retrieval: does one paper of the ACL Anthology Network cite the other. Its
files new_aan_pairs.{train,eval,test}.tsv have label, two numbers and two texts in a line; the first 4,000
bytes of a text are kept, as LRA does. lra_retrieval_mini is a small form of it: are two pieces of 256 bytes,
which do not overlap, of one article of WikiText, 8,000, 1,000 and 1,000 pairs, half of them yes, each set of
its own articles. A piece may be in several pairs, but no pair comes twice.
"""

import random
import re
from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.binarise import SPLITS
from data_prep.classified import SPECIALS, as_types, write_about, write_split
from data_prep.door import check_text, noted_folder
from data_prep.imdb import BYTES
from data_prep.labelled import Labelled

LABELS = ("no", "yes")
FILES = {"train": "train", "valid": "eval", "test": "test"}
LONGEST = 4000  # bytes
PIECE = 256  # bytes
PAIRS = {"train": 8000, "valid": 1000, "test": 1000}
TITLE = re.compile(rb"(?m)(?:\A|^ *\n)( = [^=\n].* = \n)(?= *\n)")  # between blank lines


class Papers(Labelled):
    """LRA's pairs of papers."""

    published, needs_from = "nothing", True
    accepts = "new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv"

    def check(self, args):
        super().check(args)
        print(f"Checking {args.source}", flush=True)
        for split in SPLITS:
            if not sum(1 for _ in self.pairs(args, split)):
                raise ValueError(f"{args.source} has no pairs for {split}")

    def pairs(self, args: Namespace, split: str) -> Iterator[tuple[bytes, bytes, int]]:
        """Yields both texts and the label of each pair of a split."""
        return papers(args.source / f"new_aan_pairs.{FILES[split]}.tsv")

    def prepare(self, args, source, found):
        rows = {}
        with noted_folder(args.out / "bin", source) as part:
            for split in SPLITS:
                encoded = (
                    (*(as_types(np.frombuffer(text, np.uint8)) for text in texts), label)
                    for *texts, label in self.pairs(args, split)
                )
                rows[split] = write_split(part, split, encoded, len(BYTES) + SPECIALS)
            write_about(part, BYTES, LABELS, rows)


class Pieces(Papers):
    """Pairs of pieces of articles."""

    accepts = "WikiText's train, valid and test as SPLIT.txt or wiki.SPLIT.tokens"

    def pairs(self, args, split):
        names = [f"{split}.txt", f"wiki.{split}.tokens"]
        path = next((args.source / name for name in names if (args.source / name).exists()), None)
        path = path or args.source / names[0]
        check_text(path, f"--from takes a folder with {self.accepts}")
        return drawn(articles(path), PAIRS[split])


def papers(path: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """Yields both texts and the label of each line of a file of LRA's; ValueError names a bad line."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: --from takes a folder with {Papers.accepts}")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != 5:
                raise ValueError(f"{path} line {number} has {len(fields)} fields instead of 5")
            label, _, _, *texts = fields
            if label not in (b"0", b"1", b"0.0", b"1.0"):
                shown = label[:20].decode(errors="replace")
                raise ValueError(f"{path} line {number} has the label {shown!r} instead of 0 or 1")
            if not all(texts):
                raise ValueError(f"{path} line {number} has an empty text")
            yield *(text[:LONGEST] for text in texts), int(label[:1])


def articles(path: Path) -> list[list[bytes]]:
    """Returns the pieces of each article of WikiText that has two or more; it begins with its title."""
    text = path.read_bytes()
    starts = [match.start(1) for match in TITLE.finditer(text)]
    found = []
    for start, end in pairwise([*starts, len(text)]):
        whole = range(start, end - PIECE + 1, PIECE)
        found.append([text[i : i + PIECE] for i in whole])
    found = [pieces for pieces in found if len(pieces) > 1]
    if len(found) < 2:
        raise ValueError(f"{path} has fewer than two articles of two pieces: WikiText's text is needed")
    return found


def drawn(found: list[list[bytes]], most: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Yields ``most`` pairs of pieces, fewer if there are not as many, every second of one article.

    They are always the same ones.
    """
    sizes = [len(pieces) for pieces in found]
    of_one = sum(size * (size - 1) // 2 for size in sizes)
    of_two = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    places = [(i, j) for i, size in enumerate(sizes) for j in range(size)]
    draw, seen = random.Random(1), set()
    for n in range(2 * min(most // 2, of_one, of_two)):
        label = n % 2
        while True:
            first = draw.choice(places)
            second = (first[0], draw.randrange(sizes[first[0]])) if label else draw.choice(places)
            fits = first != second if label else first[0] != second[0]
            if fits and frozenset((first, second)) not in seen:
                break
        seen.add(frozenset((first, second)))
        yield *(found[i][j] for i, j in (first, second)), label
