"""Natural language inference (SNLI, Bowman et al. 2015) in words, from SNLI or one file in its format."""

import json
from collections import defaultdict
from pathlib import Path

from data_prep.cut import check_cut, cut, cut_option
from data_prep.fetch import SOURCES
from data_prep.labeled_words import LabeledWords
from data_prep.validation import check_one_folder, is_unicode, usable_rows
from fairseq_lrpe.data.glue_tasks import THREE_WAY
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_lines, visible_files

NAMES = {"train": "snli_1.0_train.jsonl", "valid": "snli_1.0_dev.jsonl", "test": "snli_1.0_test.jsonl"}
KEYS = (("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label"))
UNDECIDED = "-"


class Snli(LabeledWords):
    """Natural language inference (SNLI, Bowman et al. 2015), for the task ``classification``.

    Pairs with the label "-", on whose label no majority of the annotators agrees, are skipped. --cut makes a
    small corpus of one file: its first rows are used for training, the next for validation, and the next for
    test.
    """

    accepts = (
        f"{SOURCES['snli']['archive']}, a folder with its {', '.join(NAMES.values())}, or with --cut a file "
        f"of JSON lines with {' '.join(KEYS[0])} or {' '.join(KEYS[1])} (default: download it)"
    )
    options = {
        **LabeledWords.options,
        **cut_option(
            "numbers of rows of the splits, taken in this order from the single file given by --from",
            *("TRAIN", "VALID", "TEST"),
        ),
    }

    def check(self, args):
        super().check(args)
        check_cut(args)

    def published_rows(self, args):
        return {} if args.cut else super().published_rows(args)

    def rows(self, args):
        if args.cut:
            return cut(args.source, [[row] for row in pairs(args.source)], args.cut)
        source = self.archive(args)
        paths = defaultdict(list)  # {file name: paths}
        for path in visible_files(source):
            paths[path.name].append(path)
        if missing := set(NAMES.values()) - set(paths):
            raise UserError(f"--from has no {min(missing)}: it takes {self.accepts}")
        for name in NAMES.values():
            folders = set()
            for path in paths[name]:
                folders.add(path.parent)
            check_one_folder(folders, source)
        return {split: pairs(paths[name][0]) for split, name in NAMES.items()}


def pairs(path: Path) -> list[tuple[str, str, str]]:
    labeled = []
    undecided = 0
    for row in usable_rows(read_lines(path), pair_of, path):
        if row[-1] == UNDECIDED:
            undecided += 1
        else:
            labeled.append(row)
    if undecided:
        total = undecided + len(labeled)
        print(f"{path}: skipped {undecided:,} of {total:,} pairs: they have no label")
    if not labeled:
        raise UserError(f"{path} has no labeled pairs: expected at least one")
    return labeled


def pair_of(line: str) -> tuple[str, str, str]:
    first, second, label = values_of(json.loads(line))
    if label not in (*THREE_WAY, UNDECIDED):
        raise UserError(f"has the label {label!r} instead of one of {', '.join(THREE_WAY)}, -")
    if not is_unicode(first, second):
        raise UserError("has an unpaired surrogate, which is not a character")
    return first, second, label


def values_of(row: object) -> list[str]:
    """Returns the two texts and the label of a row in one of the formats of ``KEYS``."""
    for keys in KEYS:
        if isinstance(row, dict) and set(keys) <= set(row):
            values = [row[key] for key in keys]
            if all(isinstance(value, str) for value in values):
                return values
            break
    needed = " or ".join(map(", ".join, KEYS))
    raise UserError(f"is not a pair with a label: expected an object with string values for {needed}")
