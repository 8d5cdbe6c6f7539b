"""Pairs of documents as bytes, labeled as related or not, for the task ``classification``."""

import random
import re
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from data_prep.binarize import SPLITS
from data_prep.labeled import Labeled
from data_prep.validation import usable_rows
from fairseq_lrpe.data.classified_text import BYTES
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import byte_lines, check_regular, read_file, without_mark

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "valid": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
MAX_TEXT = 4000  # bytes that are kept of a text
SEGMENT = 256  # bytes per segment
MAX_BYTES = 1 << 31  # limit per file of WikiText
PAIRS = {"train": 8000, "valid": 1000, "test": 1000}
TITLE = re.compile(rb"(?m)(?:\A|^ *\n)( = [^=\n].* = \n)(?= *\n)")  # title of an article, between blank lines

Pair = tuple[bytes, bytes, int]  # (first text, second text, label)


class Papers(Labeled):
    """Long-Range Arena's Retrieval, for ``classification``: pairs of papers of the ACL Anthology Network.

    The label is whether one paper cites the other. Each line of the files
    new_aan_pairs.{train,eval,test}.tsv consists of a label, two numbers and two texts, separated by tabs.
    Texts are truncated to 4,000 bytes, as in LRA.
    """

    accepts = f"a folder with {', '.join(FILES.values())}"
    types = BYTES
    labels = ("no", "yes")

    def pairs(self, folder: Path, split: str) -> Iterator[Pair]:
        path = folder / FILES[split]
        check_regular(path)
        with path.open("rb") as lines:
            yield from usable_rows(byte_lines(lines, str(path)), pair_of, path)

    def splits(self, args):
        for split in SPLITS:
            pairs = self.pairs(args.source, split)
            yield split, map(self.example, pairs), None

    @staticmethod
    def example(pair: tuple) -> tuple:
        """Returns the bytes of the two texts of a pair as arrays (n,), and the label."""
        first, second, label = pair
        return np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8), label


class Segments(Papers):
    """Pairs of segments of WikiText articles as bytes, for the task ``classification``.

    The label is whether two disjoint segments of 256 bytes are from the same article. There are 8,000
    training, 1,000 validation and 1,000 test pairs, or fewer of a short text. Half of the pairs are positive.
    All pairs are distinct, and no article is in two splits.
    """

    accepts = "a folder with WikiText's train, valid and test as SPLIT.txt or wiki.SPLIT.tokens"

    def pairs(self, folder, split):
        path = folder / f"{split}.txt"
        original = folder / f"wiki.{split}.tokens"
        if original.exists() and not path.exists():
            path = original
        return sample_pairs(articles(path), PAIRS[split])


def pair_of(line: bytes) -> Pair:
    fields = line.split(b"\t")
    if len(fields) != 5:
        raise UserError(f"has {len(fields)} fields instead of 5")
    label, _, _, first, second = fields
    if label not in (b"0", b"1", b"0.0", b"1.0"):
        raise UserError(f"has the label {label[:20].decode(errors='replace')!r} instead of 0 or 1")
    if not first or not second:
        raise UserError("has an empty text")
    return first[:MAX_TEXT], second[:MAX_TEXT], int(label[:1])


def articles(path: Path) -> list[list[bytes]]:
    """Returns the list of segments of SEGMENT bytes of each WikiText article with at least two segments."""
    text = without_mark(read_file(path, MAX_BYTES), str(path)).replace(b"\r\n", b"\n")
    starts = [match.start(1) for match in TITLE.finditer(text)]
    segments_of_articles = []
    for start, end in pairwise([*starts, len(text)]):
        segments = [text[begin : begin + SEGMENT] for begin in range(start, end - SEGMENT + 1, SEGMENT)]
        if len(segments) > 1:
            segments_of_articles.append(segments)
    if len(segments_of_articles) < 2:
        articles = f"articles of {2 * SEGMENT}+ bytes with a title (a line ` = Title = ` between blank lines)"
        raise UserError(f"{path} has fewer than two {articles}: pass the original files of WikiText")
    return segments_of_articles


def sample_pairs(texts: list[list[bytes]], limit: int) -> Iterator[Pair]:
    """Yields at most ``limit`` distinct random pairs of segments, alternately of two articles and of one.

    ``texts`` contains the list of segments of each article. The same arguments always give the same pairs.
    """
    sizes = list(map(len, texts))
    same = 0  # number of pairs of different segments of the same article
    different = 0  # number of pairs of segments of different articles
    indices = []
    for article, size in enumerate(sizes):
        same += size * (size - 1) // 2
        different += len(indices) * size
        indices += product([article], range(size))
    draw = random.Random(1)
    seen = set()
    for n in range(2 * min(limit // 2, same, different)):
        label = n % 2
        while True:
            first = draw.choice(indices)
            second = (first[0], draw.randrange(sizes[first[0]])) if label else draw.choice(indices)
            valid = first != second if label else first[0] != second[0]
            if valid and frozenset((first, second)) not in seen:
                break
        seen.add(frozenset((first, second)))
        yield texts[first[0]][first[1]], texts[second[0]][second[1]], label
