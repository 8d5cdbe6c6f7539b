"""Pairs of documents as bytes, labelled as related or not, for the task ``classification``.

The corpus lra_retrieval is Long-Range Arena's Retrieval. Its label is whether one of two papers of the ACL
Anthology Network cites the other. Each line of the files new_aan_pairs.{train,eval,test}.tsv consists of a
label, two numbers and two texts. Texts are truncated to 4,000 bytes, as in LRA.

The label of the corpus lra_retrieval_mini is whether two disjoint segments of 256 bytes are from the same
WikiText article. It has 8,000 training, 1,000 validation and 1,000 test pairs, half of which are positive.
The pairs are distinct, and no article is in two splits.
"""

import random
import re
from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.binarize import SPLITS
from data_prep.labelled import Labelled
from data_prep.validation import check_text, usable_rows
from fairseq_lrpe.data.classified_text import BYTES
from fairseq_lrpe.utils.files import byte_lines, read_file, without_mark

FILES = {x: f"new_aan_pairs.{'eval' if x == 'valid' else x}.tsv" for x in SPLITS}
MAX_TEXT = 4000  # bytes that are kept of a text
SEGMENT = 256  # bytes per segment
MAX_BYTES = 1 << 31  # limit per file
PAIRS = {"train": 8000, "valid": 1000, "test": 1000}
TITLE = re.compile(rb"(?m)(?:\A|^ *\n)( = [^=\n].* = \n)(?= *\n)")  # title of an article, between blank lines


class Papers(Labelled):
    """Long-Range Arena's pairs of papers."""

    accepts = f"a folder with {', '.join(FILES.values())}"
    types, labels = BYTES, ("no", "yes")

    def check(self, args):
        print(f"Checking {args.source}", flush=True)
        for split in SPLITS:
            if not sum(1 for _ in self.pairs(args, split, report=True)):
                raise ValueError(f"{args.source} has no pairs for {split}: expected {self.accepts}")

    def pairs(self, args: Namespace, split: str, report=False) -> Iterator[tuple[bytes, bytes, int]]:
        """Yields (first text, second text, label) of each pair; ``report`` prints how many are broken."""
        return papers(args.source / FILES[split], report)

    def splits(self, args, inputs):
        for split in SPLITS:
            pairs = self.pairs(args, split)
            yield (
                split,
                ((*(np.frombuffer(x, np.uint8) for x in texts), label) for *texts, label in pairs),
                None,
            )


class Segments(Papers):
    """Pairs of segments of WikiText articles."""

    accepts = "a folder with WikiText's train, valid and test as SPLIT.txt or wiki.SPLIT.tokens"

    def pairs(self, args, split, report=False):
        path, other = args.source / f"{split}.txt", args.source / f"wiki.{split}.tokens"
        path = other if other.exists() and not path.exists() else path
        check_text(path, f"--from takes {self.accepts}")
        return sample_pairs(articles(path), PAIRS[split])


def papers(path: Path, report: bool) -> Iterator[tuple[bytes, bytes, int]]:
    """Yields (first text, second text, label) for each line of one of Long-Range Arena's files."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: --from takes {Papers.accepts}")
    with path.open("rb") as lines:
        yield from usable_rows(byte_lines(lines, str(path)), pair_of, path, report=report)


def pair_of(line: bytes) -> tuple[bytes, bytes, int]:
    """Returns (first text, second text, label) of a line of one of Long-Range Arena's files."""
    fields = line.split(b"\t")
    if len(fields) != 5:
        raise ValueError(f"has {len(fields)} fields instead of 5")
    label, _, _, *texts = fields
    if label not in (b"0", b"1", b"0.0", b"1.0"):
        raise ValueError(f"has the label {label[:20].decode(errors='replace')!r} instead of 0 or 1")
    if not all(texts):
        raise ValueError("has an empty text")
    return *(text[:MAX_TEXT] for text in texts), int(label[:1])


def articles(path: Path) -> list[list[bytes]]:
    """Returns the segments of each WikiText article that has at least two segments."""
    text = without_mark(read_file(path, MAX_BYTES), str(path)).replace(b"\r\n", b"\n")
    starts = [match.start(1) for match in TITLE.finditer(text)]
    found = []
    for start, end in pairwise([*starts, len(text)]):
        found.append([text[i : i + SEGMENT] for i in range(start, end - SEGMENT + 1, SEGMENT)])
    found = [segments for segments in found if len(segments) > 1]
    if len(found) < 2:
        raise ValueError(f"{path} has fewer than two articles of two segments: expected WikiText")
    return found


def sample_pairs(found: list[list[bytes]], limit: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Yields (first segment, second segment, label) of random pairs, alternating between both labels.

    The pairs depend only on the segments, not on torch's or Python's random state.

    Args:
        found: Segments of each article.
        limit: Maximum number of pairs.
    """
    sizes = [len(segments) for segments in found]
    same = sum(size * (size - 1) // 2 for size in sizes)
    different = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    indices = [(article, segment) for article, size in enumerate(sizes) for segment in range(size)]
    draw, seen = random.Random(1), set()
    for n in range(2 * min(limit // 2, same, different)):
        label = n % 2
        while True:
            first = draw.choice(indices)
            second = (first[0], draw.randrange(sizes[first[0]])) if label else draw.choice(indices)
            valid = first != second if label else first[0] != second[0]
            if valid and frozenset((first, second)) not in seen:
                break
        seen.add(frozenset((first, second)))
        yield *(found[i][j] for i, j in (first, second)), label
