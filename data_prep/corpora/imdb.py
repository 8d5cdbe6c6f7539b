"""IMDB movie reviews (Maas et al. 2011) as bytes, as words, or as running text."""

import hashlib
import re
from typing import ClassVar, NamedTuple

import numpy as np

from data_prep.binarize import SPLITS
from data_prep.corpus import Corpus, number
from data_prep.fetch import files_in
from data_prep.labelled import Labelled
from data_prep.labelled_words import LabelledWords
from data_prep.text_corpus import SentencePieceCorpus, write_splits
from fairseq_lrpe.data.classified_text import BYTES
from fairseq_lrpe.utils.files import read_file, without_mark

LABELS = ("neg", "pos")
EVERY = 100  # one review of so many is used for validation in imdb_lm, and one for test


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
        return f"{self.facts['archive']}, or {layout} (default: download it)"

    def reviews(self, args) -> dict[str, list[Review]]:
        """Returns {"train": reviews, "test": reviews}, sorted by the SHA-256 of their paths."""
        folder = self.archive(args)
        splits = {"train": [], "test": []}
        paths = rf"(?:^|/)(train|test)/({'|'.join(self.folders)})/([^/]+\.txt)$"
        for match, path in files_in(folder, paths, args.source or folder):
            split, label, name = match.groups()
            splits[split].append(Review(without_mark(read_file(path), str(path)), label, f"{label}/{name}"))
        for split, part in splits.items():
            for label in LABELS:
                if sum(review.label == label for review in part) < 2:
                    name = f"{split}/{label}/*.txt"
                    raise ValueError(f"{args.source} has fewer than two files {name}: expected at least two")
            if empty := next((review.path for review in part if not review.text.strip()), None):
                raise ValueError(f"{args.source} has an empty review, {split}/{empty}")
            part.sort(key=lambda review: hashlib.sha256(review.path.encode()).digest())
        return splits


class ByBytes(Reviews, Labelled):
    """Long-Range Arena's text classification, for ``classification``: whole IMDB reviews as bytes.

    As in LRA itself, the validation set is the test set, so the best checkpoint is selected on the test set.
    """

    types, labels = BYTES, LABELS

    def splits(self, args):
        reviews = self.reviews(args)
        for split in SPLITS:
            found = reviews["train" if split == "train" else "test"]
            rows = ((np.frombuffer(review.text, np.uint8), LABELS.index(review.label)) for review in found)
            yield split, rows, len(found)


class ByWords(Reviews, LabelledWords):
    """IMDB reviews (Maas et al. 2011) as words, for ``classification``, without <br /> tags.

    A tenth of the training reviews of each class is used for validation, 2,500 in total: those whose names
    have the smallest SHA-256 hashes.
    """

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


class RunningText(Reviews, SentencePieceCorpus):
    """IMDB reviews (Maas et al. 2011) in SentencePiece units, for fairseq's language_modeling.

    All reviews of the archive are used without their labels, also those in train/unsup if it is present. A
    line is a review without <br /> tags, and repeated reviews are left out. One of every 100 reviews is used
    for validation and one for test; the order is that of the SHA-256 hashes of the names. The SentencePiece
    model is learned on train.txt and saved as OUT/bin/spm.model.
    """

    folders = (*LABELS, "unsup")
    options: ClassVar = {
        "--sentencepiece": number("maximum vocabulary size (default: %(default)s)", default=8000)
    }

    def write_text(self, args, folder):
        texts = (" ".join(plain(x).split()) for part in self.reviews(args).values() for x in part)
        lines = {split: [] for split in SPLITS}
        for i, text in enumerate(dict.fromkeys(texts)):
            lines[{0: "valid", 1: "test"}.get(i % EVERY, "train")].append(text)
        write_splits(folder, lines)


def plain(review: Review) -> str:
    """Returns the text of a review with line break tags replaced by spaces."""
    try:
        return re.sub(r"<br\s*/?>", " ", review.text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the review {review.path} is not UTF-8 text ({error}): convert it to UTF-8"
        ) from None
