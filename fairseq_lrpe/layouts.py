"""Which files a folder of binarised data has: what preparations write, and trainings look for."""

import json
from collections.abc import Iterable
from itertools import count, takewhile
from pathlib import Path

ENDS = (".bin", ".idx")
ABOUT = "about.json"
"""The file of a folder of inputs with labels that says what they are."""
PREPARATION = "preparation.json"
"""The file of a folder of pairs that says what made tokens of their text."""


def binaries(names: Iterable[str]) -> list[str]:
    """Returns the two files of each binarised text."""
    return [f"{name}{end}" for name in names for end in ENDS]


def text(splits: Iterable[str]) -> list[str]:
    """Returns the files of a text in one language: what ``fairseq-preprocess --only-source`` writes."""
    return ["dict.txt", *binaries(splits)]


def translation(splits: Iterable[str], source: str, target: str) -> list[str]:
    """Returns the files of pairs of sentences in two languages: what ``fairseq-preprocess`` writes."""
    names = [f"{split}.{source}-{target}.{language}" for split in splits for language in (source, target)]
    return [f"dict.{source}.txt", f"dict.{target}.txt", *binaries(names)]


def sentences(splits: Iterable[str]) -> list[str]:
    """Returns the files of a task of GLUE that data_prep writes, for fairseq's sentence_prediction."""
    return ["rows.json", "input0/dict.txt", *binaries(f"input0/{split}" for split in splits)]


def questions(splits: Iterable[str]) -> list[str]:
    """Returns the files of answers in texts and their questions, for our task question_generation."""
    return ["vocab.txt", PREPARATION, *translation(splits, "source", "question")]


def classified(splits: Iterable[str], inputs: int) -> list[str]:
    """Returns the files of rows of so many inputs with a label, for our task classification."""
    return ["dict.txt", *labelled(splits, inputs)]


def labelled(splits: Iterable[str], inputs: int = 1) -> list[str]:
    """Returns the files of rows of so many inputs with a label; of pictures, for image_classification."""
    names = [f"{split}.input{i}" for split in splits for i in range(inputs)]
    return [ABOUT, *binaries(names), *(f"{split}.label.npy" for split in splits)]


def about(folder: Path) -> dict:
    """Returns what the inputs and labels of a folder are, as ``data_prep`` wrote it.

    {"inputs": how many a row has, "labels": their names, "rows": {split: how many}} and, of pictures,
    "shape" and "pixels", {"mean", "std"} of their values; "images" if they are files of pictures. ValueError
    if the folder does not say so.
    """
    try:
        found = json.loads((folder / ABOUT).read_text())
        fine = found["inputs"] in (1, 2) and len(found["labels"]) > 1 and isinstance(found["rows"], dict)
    except (OSError, ValueError, LookupError, TypeError):
        fine = False
    if not fine:
        raise ValueError(
            f"{folder} holds no inputs with labels, {ABOUT} is missing or damaged: "
            "bash data_prep/prepare.sh makes such folders, such as those of sentences"
        )
    return found


def shards(folder: Path) -> list[Path]:
    """Returns a data folder and those numbered after it, bin, bin1, bin2, ..: fairseq takes one an epoch."""
    numbered = (folder.with_name(f"{folder.name}{i}") for i in count(1))
    return [folder, *takewhile(Path.is_dir, numbered)]


def vocabulary_size(dictionary: Path) -> int:
    """Returns what fairseq counts when it loads a dictionary: its lines, and <s>, <pad>, </s> and <unk>."""
    return dictionary.read_bytes().count(b"\n") + 4
