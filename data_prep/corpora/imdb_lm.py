"""IMDB movie reviews (Maas et al. 2011) in SentencePiece units, for fairseq's language_modeling.

All reviews of the archive are used without their labels, also those in train/unsup if it is present. A line
is a review without <br /> tags, and repeated reviews are left out. One of every 100 reviews is used for
validation and one for test; the order is that of the SHA-256 hashes of the names. The SentencePiece model is
learned on train.txt and saved as OUT/bin/spm.model.
"""

from contextlib import ExitStack

from data_prep.binarize import split_files
from data_prep.corpora.imdb import LABELS, Reviews, plain
from data_prep.corpora.own_text import OwnText
from data_prep.corpus import Corpus

EVERY = 100  # one review of so many is used for validation, and one for test


class RunningText(Reviews, OwnText):
    """IMDB reviews as running text; ``check`` returns {"train": reviews, "test": reviews} of the archive."""

    folders = (*LABELS, "unsup")
    pieces = 8_000
    published = Corpus.published

    def check(self, args):
        return None if (args.out / "text").is_dir() else self.reviews(args)

    def write_splits(self, args, inputs, folder):
        texts = (" ".join(plain(review).split()) for part in inputs.values() for review in part)
        with ExitStack() as stack:
            files = {
                split: stack.enter_context(path.open("w", encoding="utf-8"))
                for split, path in split_files(folder).items()
            }
            for i, text in enumerate(dict.fromkeys(texts)):
                files[{0: "valid", 1: "test"}.get(i % EVERY, "train")].write(f"{text}\n")
