"""The user's own labeled texts or pairs of texts, with one file per column and split."""

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
    label per line and, for pairs, train.input1.txt with the second texts. It must also contain the same files
    of valid, and may contain those of test.
    """

    accepts = "a folder with train.input0.txt, train.label and, for pairs, train.input1.txt, likewise valid"

    def rows(self, args):
        endings = ["input0.txt", "label"]
        if (args.source / "train.input1.txt").exists():
            endings.insert(1, "input1.txt")
        rows = {}
        for split in SPLITS:
            if split != "test" or any(args.source.glob("test.*")):
                rows[split] = read_rows([args.source / f"{split}.{ending}" for ending in endings])
        return rows


def read_rows(paths: list[Path]) -> list[tuple[str, ...]]:
    """Returns the rows (text ..., label) of a split, given a file for each column, with one line per row.

    Raises:
        UserError: if the numbers of lines differ, or a label is empty or contains a tab.
    """
    check_parallel(paths)
    *text_paths, label_path = paths
    columns = []
    for path in text_paths:
        columns.append(list(map(str.strip, read_lines(path))))
    labels = []
    for number, line in enumerate(read_lines(label_path), 1):
        label = unicodedata.normalize("NFC", line.strip())  # macOS decomposes accents
        labels.append(label)
        place = f"{label_path} line {number}"
        if not label:
            raise UserError(f"{place} is empty: each text needs a label")
        if "\t" in label:  # it separates columns in files of predictions
            raise UserError(f"{place} has a tab in its label: replace it, such as by a space")
    return [*zip(*columns, labels, strict=True)]
