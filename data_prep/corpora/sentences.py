"""The user's own labeled texts."""

import unicodedata
from pathlib import Path

from data_prep.binarize import SPLITS
from data_prep.labeled_words import LabeledWords
from data_prep.validation import check_parallel
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_lines


class Sentences(LabeledWords):
    """Your own labeled texts, or pairs of texts, split into words, for the task ``classification``.

    The folder given by --from must contain train.input0.txt with one text per line, train.label with one
    label per line and, for pairs, train.input1.txt with the second texts; likewise the files of valid, and
    optionally those of test.
    """

    accepts = "a folder with train.input0.txt, train.label and, for pairs, train.input1.txt, likewise valid"

    def rows(self, args):
        second = [".input1.txt"] if (args.source / "train.input1.txt").exists() else []
        found = {}
        for split in SPLITS:
            if split != "test" or any(args.source.glob("test.*")):
                paths = [args.source / f"{split}{end}" for end in (".input0.txt", *second, ".label")]
                found[split] = read_rows(paths)
        return found


def read_rows(paths: list[Path]) -> list[tuple[str, ...]]:
    """Returns rows of one line per file; raises UserError if numbers of lines differ, or for a bad label."""
    check_parallel(paths)
    found = [[line.strip() for line in read_lines(path)] for path in paths]
    found[-1] = [unicodedata.normalize("NFC", label) for label in found[-1]]  # macOS decomposes accents
    for number, label in enumerate(found[-1], 1):
        place = f"{paths[-1]} line {number}"
        if not label:
            raise UserError(f"{place} is empty: each text needs a label")
        if "\t" in label:  # it separates columns in files of predictions
            raise UserError(f"{place} has a tab in its label: replace it, such as by a space")
    return [*zip(*found, strict=True)]
