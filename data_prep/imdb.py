"""IMDB's reviews of films, good or bad (Maas et al. 2011) -> binaries for our task classification.

lra_text is Long-Range Arena's text classification: the whole review as bytes. As in LRA itself, the
validation set is the test set, so that its best checkpoint is chosen on what is measured. imdb has the
reviews as words, without <br />; a tenth of the training reviews of each kind, 2,500 in all, is held out as
its validation set: those whose names have the smallest SHA-256.
"""

import hashlib
import shutil
from argparse import Namespace
from typing import NamedTuple

import numpy as np
import regex

from data_prep.classified import SPECIALS, as_types, write_about, write_split
from data_prep.door import noted_folder
from data_prep.fetch import SOURCES, fetch, files_in
from data_prep.labelled import Labelled
from data_prep.labelled_words import LabelledWords

FACTS = SOURCES["imdb"]
LABELS = ("neg", "pos")
LAYOUT = r"(?:^|/)(train|test)/(pos|neg)/([^/]+\.txt)$"
BYTES = [f"0x{value:02x}" for value in range(256)]


class Review(NamedTuple):
    """A review as it stands in its file."""

    text: bytes
    label: str
    path: str


class ByBytes(Labelled):
    """The reviews as bytes; ``found``: what ``reviews`` returns, or None if that is still to be fetched."""

    metavar = "FILE_OR_FOLDER"
    published = FACTS["archive"]
    accepts = (
        f"{published}, or an archive or a folder of the same layout, {{train,test}}/{{pos,neg}}/*.txt "
        "(default: download it)"
    )

    def check(self, args):
        return reviews(args) if args.source else None

    def prepare(self, args, source, found):
        found, rows = found or reviews(args), {}
        with noted_folder(args.out / "bin", source) as part:
            for split, part_of in found.items():
                encoded = (
                    (as_types(np.frombuffer(review.text, np.uint8)), LABELS.index(review.label))
                    for review in part_of
                )
                rows[split] = write_split(part, split, encoded, len(BYTES) + SPECIALS, len(part_of))
            for path in part.glob("test.*"):
                shutil.copyfile(path, part / path.name.replace("test", "valid", 1))
            rows = {"train": rows["train"], "valid": rows["test"], "test": rows["test"]}
            write_about(part, BYTES, LABELS, rows)


class ByWords(LabelledWords):
    """The reviews as words."""

    metavar = ByBytes.metavar
    published = ByBytes.published
    accepts = ByBytes.accepts

    def rows(self, args):
        found = reviews(args)
        held_out = set()
        for label in LABELS:
            paths = [review.path for review in found["train"] if review.label == label]
            held_out.update(paths[: max(1, len(paths) // 10)])
        parts = {
            "train": [review for review in found["train"] if review.path not in held_out],
            "valid": [review for review in found["train"] if review.path in held_out],
            "test": found["test"],
        }
        return {split: [(plain(review), review.label) for review in part] for split, part in parts.items()}


def reviews(args: Namespace) -> dict[str, list[Review]]:
    """Returns {train, test: its reviews}, sorted by the SHA-256 of their names, which mixes good and bad."""
    source = args.source or fetch(args.out / FACTS["archive"], FACTS)
    found = {"train": [], "test": []}
    for match, content in files_in(source, LAYOUT):
        split, label, name = match.groups()
        found[split].append(Review(content, label, f"{label}/{name}"))
    for split, part in found.items():
        for label in LABELS:
            if sum(review.label == label for review in part) < 2:
                raise ValueError(f"{source} has fewer than two {split}/{label}/*.txt: both kinds are needed")
        if empty := next((review.path for review in part if not review.text.strip()), None):
            raise ValueError(f"{source} has an empty review, {split}/{empty}")
        part.sort(key=lambda review: hashlib.sha256(review.path.encode()).digest())
    return found


def plain(review: Review) -> str:
    """Returns the text of a review without marks of lines."""
    try:
        return regex.sub(r"<br\s*/?>", " ", review.text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"the review {review.path} is not UTF-8 text ({error}): convert it first") from None
