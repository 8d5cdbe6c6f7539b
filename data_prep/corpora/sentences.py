"""Your own labelled texts, or pairs of texts, split into words, for the task ``classification``.

The folder given by --from must contain train.input0.txt with one text per line, train.label with one label
per line and, for pairs, train.input1.txt with the second texts; likewise the files of valid, and optionally
those of test.
"""

from pathlib import Path

from data_prep.binarize import SPLITS
from data_prep.labelled_words import LabelledWords
from data_prep.validation import check_text
from fairseq_lrpe.utils.files import read_lines

FOLDER = (
    "a folder with train.input0.txt, train.label and, for pairs, train.input1.txt; likewise valid and test"
)


class Sentences(LabelledWords):
    """The user's own labelled texts."""

    accepts = FOLDER

    def rows(self, args):
        named = [split for split in SPLITS if split != "test" or any(args.source.glob("test.*"))]
        second = [".input1.txt"] if (args.source / "train.input1.txt").exists() else []
        found = {split: columns(args.source, split, [".input0.txt", *second, ".label"]) for split in named}
        known = set(found["train"][-1])
        for split, (*_, labels) in found.items():
            for number, label in enumerate(labels, 1):
                where = f"{args.source / split}.label line {number}"
                if not label:
                    raise ValueError(f"{where} is empty: each text needs a label")
                if "\t" in label:
                    raise ValueError(f"{where} has a tab in the label {label!r}: use spaces")
                if label not in known:
                    raise ValueError(f"{where} has the label {label!r}, which is not in train.label")
        return {split: list(zip(*part, strict=True)) for split, part in found.items()}


def columns(folder: Path, split: str, ends: list[str]) -> list[list[str]]:
    """Returns the lines of the files ``split`` + ending, which must have equally many lines."""
    paths = [folder / f"{split}{end}" for end in ends]
    counts = [check_text(path, f"--from takes {FOLDER}") for path in paths]
    for path, count in zip(paths, counts, strict=True):
        if count != counts[0]:
            raise ValueError(f"{paths[0]} has {counts[0]:,} lines, but {path} has {count:,}")
    return [[line.strip() for line in read_lines(path)] for path in paths]
