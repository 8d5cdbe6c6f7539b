"""IMDB movie reviews (Maas et al. 2011), for the task ``classification``.

The corpus lra_text is Long-Range Arena's text classification, with whole reviews as bytes. As in LRA itself,
the validation set is the test set, so the best checkpoint is selected on the test set.

The corpus imdb contains the reviews as words, without <br /> tags. A tenth of the training reviews of each
class is used for validation, 2,500 in total: those whose names have the smallest SHA-256 hashes.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import regex

from data_prep.corpus import Corpus
from data_prep.fetch import files_in
from data_prep.labelled import Labelled
from data_prep.labelled_words import LabelledWords
from fairseq_lrpe.data.classified_text import BYTES
from fairseq_lrpe.utils.files import without_mark

LABELS = ("neg", "pos")
MAX_BYTES = 1 << 24  # limit per review


class Review(NamedTuple):
    """A review as UTF-8 text, its label, and its path LABEL/NAME."""

    text: bytes
    label: str
    path: str


class Reviews(Corpus):
    """Base class of the IMDB corpora, read from the published archive or from files with the same layout.

    ``folders`` are the folders to read, which are the labels of their reviews.
    """

    folders = LABELS
    metavar = "FILE_OR_FOLDER"

    @property
    def accepts(self):
        layout = "an archive or a folder of the same layout, {train,test}/{pos,neg}/*.txt"
        return f"{self.published}, or {layout} (default: download it)"

    def reviews(self, args) -> dict[str, list[Review]]:
        """Returns {"train": reviews, "test": reviews}, sorted by the SHA-256 of their paths."""
        source = self.archive(args)
        splits = {"train": [], "test": []}
        paths = rf"(?:^|/)(train|test)/({'|'.join(self.folders)})/([^/]+\.txt)$"
        for match, content in files_in(source, paths, MAX_BYTES):
            split, label, name = match.groups()
            text = without_mark(content, f"{source}: {match[0]}")
            splits[split].append(Review(text, label, f"{label}/{name}"))
        for split, part in splits.items():
            for label in LABELS:
                if sum(review.label == label for review in part) < 2:
                    name = f"{split}/{label}/*.txt"
                    raise ValueError(f"{source} has fewer than two files {name}: expected at least two")
            if empty := next((review.path for review in part if not review.text.strip()), None):
                raise ValueError(f"{source} has an empty review, {split}/{empty}")
            part.sort(key=lambda review: hashlib.sha256(review.path.encode()).digest())
        return splits


class ByBytes(Reviews, Labelled):
    """IMDB reviews as bytes; ``check`` returns {"train": reviews, "test": reviews}."""

    types, labels = BYTES, LABELS

    def check(self, args):
        return self.reviews(args)

    def splits(self, args, inputs):
        for split, found in (("train", inputs["train"]), ("valid", inputs["test"]), ("test", inputs["test"])):
            rows = ((np.frombuffer(review.text, np.uint8), LABELS.index(review.label)) for review in found)
            yield split, rows, len(found)


class ByWords(Reviews, LabelledWords):
    """IMDB reviews as words."""

    def rows(self, args):
        splits = self.reviews(args)
        held_out = set()
        for label in LABELS:
            paths = [review.path for review in splits["train"] if review.label == label]
            held_out.update(paths[: max(1, len(paths) // 10)])
        parts = {
            "train": [review for review in splits["train"] if review.path not in held_out],
            "valid": [review for review in splits["train"] if review.path in held_out],
            "test": splits["test"],
        }
        return {split: [(plain(review), review.label) for review in part] for split, part in parts.items()}


def plain(review: Review) -> str:
    """Returns the text of a review with line break tags replaced by spaces."""
    try:
        return regex.sub(r"<br\s*/?>", " ", review.text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the review {review.path} is not UTF-8 text ({error}): convert it to UTF-8"
        ) from None
