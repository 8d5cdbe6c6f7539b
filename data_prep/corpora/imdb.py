"""IMDB movie reviews (Maas et al. 2011) as bytes, as words, or as running text."""

import hashlib
import re
from collections import Counter
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from data_prep.binarize import SPLITS
from data_prep.corpus import UNPACKED, Corpus
from data_prep.fetch import SOURCES
from data_prep.hub import find_tables, reviews_to_files
from data_prep.labeled import Labeled
from data_prep.labeled_words import LabeledWords
from data_prep.text_corpus import SentencePieceCorpus, nth_split, sentencepiece_option, write_splits
from data_prep.validation import check_one_folder
from fairseq_lrpe.data.classified_text import BYTES
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_file, visible_files, without_mark

LABELS = ("neg", "pos")
EVERY = 100  # one review of so many is used for validation in imdb_lm, and one for test


class Review(NamedTuple):
    text: bytes
    label: str
    path: str


class Reviews(Corpus):
    """Base class of the IMDB corpora, read from the published archive or from files with the same layout.

    ``folders`` are the names of the folders to read; the name of a folder is the label of its reviews.
    """

    folders = LABELS
    accepts = (
        f"{SOURCES['imdb']['archive']}, or an archive or a folder of the same layout, "
        "{train,test}/{pos,neg}/*.txt, or the hub's Parquet files (default: download it)"
    )

    def reviews(self, args) -> dict[str, list[Review]]:
        """Returns {"train": reviews, "test": reviews}, sorted by the SHA-256 of their paths."""
        source = self.archive(args)
        if tables := find_tables(source):
            source = args.out / UNPACKED
            reviews_to_files(tables, LABELS, source)
        splits = {"train": [], "test": []}
        folders = set()
        for path in visible_files(source):
            split, label, name = path.absolute().parts[-3:]
            if split in splits and label in self.folders and path.suffix == ".txt":
                content = without_mark(read_file(path), str(path))
                splits[split].append(Review(content, label, f"{label}/{name}"))
                folders.add(path.absolute().parents[2])
        for split, part in splits.items():
            counts = Counter(map(attrgetter("label"), part))
            for label in LABELS:
                if counts[label] < 2:
                    wrong = f"--from has fewer than two files {split}/{label}/*.txt"
                    raise UserError(f"{wrong}: pass the files that --help describes")
            part.sort(key=lambda review: hashlib.sha256(review.path.encode()).digest())
        check_one_folder(folders, source)
        return splits


class ByBytes(Reviews, Labeled):
    """Long-Range Arena's text classification, for ``classification``: whole IMDB reviews as bytes.

    As in LRA itself, the validation set is the test set, so the best checkpoint is selected on the test set.
    """

    types = BYTES
    labels = LABELS

    def splits(self, args):
        reviews = self.reviews(args)
        for split in SPLITS:
            part = reviews["train" if split == "train" else "test"]
            yield split, map(self.example, part), len(part)

    @staticmethod
    def example(review: Review) -> tuple[np.ndarray, int]:
        """Returns the bytes (n,) of a review and the index of its label."""
        return np.frombuffer(review.text, np.uint8), LABELS.index(review.label)


class ByWords(Reviews, LabeledWords):
    """IMDB reviews (Maas et al. 2011) as words, for ``classification``, without <br /> tags.

    A tenth of the training reviews of each class is used for validation, 2,500 in total: those whose names
    have the smallest SHA-256 hashes.
    """

    def rows(self, args):
        reviews = self.reviews(args)
        counts = Counter(map(attrgetter("label"), reviews["train"]))
        left = {label: max(1, counts[label] // 10) for label in LABELS}  # reviews for validation
        splits = {"train": [], "valid": [], "test": reviews["test"]}
        for review in reviews["train"]:
            left[review.label] -= 1
            splits["valid" if left[review.label] >= 0 else "train"].append(review)
        return {split: labeled_texts(part) for split, part in splits.items()}


class RunningText(Reviews, SentencePieceCorpus):
    """IMDB reviews (Maas et al. 2011) in SentencePiece units, for fairseq's language_modeling.

    All reviews of the archive are used without their labels, also those in train/unsup if it is present.
    Each line is one review without <br /> tags; repeated reviews are left out. The reviews of the archive's
    folder train precede those of test; within each, they are sorted by the SHA-256 hash of LABEL/NAME, such
    as neg/0_3.txt. Of every 100 consecutive reviews, the first is used for validation and the second for
    test. The SentencePiece model is learned on train.txt and saved as OUT/bin/spm.model.
    """

    folders = (*LABELS, "unsup")
    options = sentencepiece_option(8000)

    def write_text(self, args, folder):
        texts = {}  # without repeated reviews
        for part in self.reviews(args).values():
            for review in part:
                texts[" ".join(plain(review).split())] = None
        lines = {split: [] for split in SPLITS}
        for number, text in enumerate(texts):
            lines[nth_split(number, EVERY)].append(text)
        write_splits(folder, lines)


def labeled_texts(reviews: list[Review]) -> list[tuple[str, str]]:
    return [(plain(review), review.label) for review in reviews]


def plain(review: Review) -> str:
    try:
        return re.sub(r"<br\s*/?>", " ", review.text.decode())
    except UnicodeDecodeError as error:
        remedy = "convert it to UTF-8"
        raise UserError(f"the review {review.path} is not UTF-8 text ({error}): {remedy}") from None
