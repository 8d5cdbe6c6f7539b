"""Folders of inputs with labels, for our task classification: texts, pairs of texts or pictures as tokens."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data_prep.progress import AFTER
from data_prep.tokens import token_file
from fairseq_lrpe import layouts

SPECIALS = 4
"""Types that come before a dictionary's own: <s>, <pad>, </s> and <unk>."""
UNKNOWN = 3
"""The number of <unk>."""


def as_types(values: np.ndarray) -> np.ndarray:
    """Returns bytes or pixels as the numbers of their types, where type i is the value i."""
    return values.astype(np.int64) + SPECIALS  # a sum of 8 bits would overflow


def write_split(folder: Path, split: str, rows: Iterable[tuple], types: int, total: int | None = None) -> int:
    """Writes the files of a split, and returns how many rows it has.

    Args:
        rows: (tokens of each input ..., label) of each row. Tokens are arrays of numbers from SPECIALS to
            ``types`` (or UNKNOWN); the label is its number, or -1 where it is not known.
        types: how many the dictionary has, with fairseq's special ones.
        total: how many rows there will be, for the line that shows progress.
    """
    builders, labels = [], []
    shown = {"desc": f"writing {split}", "unit": "rows", "disable": None, "delay": AFTER, "leave": False}
    for *inputs, label in tqdm(rows, total=total, **shown):
        if not builders:
            prefixes = [folder / f"{split}.input{i}" for i in range(len(inputs))]
            builders = [(token_file(x, types), f"{x}.idx") for x in prefixes]
        for (builder, _), tokens in zip(builders, inputs, strict=True):
            numbers = np.asarray(tokens, dtype=np.int64)
            if numbers.size and not (numbers.min() >= UNKNOWN and numbers.max() < types):
                raise ValueError(f"row {len(labels)} of {split} has a token that is none of {types} types")
            builder.add_item(torch.from_numpy(numbers))
        labels.append(label)
    if not labels:
        raise ValueError(f"the split {split} has no rows")
    for builder, index in builders:
        builder.finalize(index)
    np.save(folder / f"{split}.label.npy", np.array(labels, dtype=np.int64))
    return len(labels)


def write_about(folder: Path, types: Sequence[str], labels: Sequence[str], rows: dict, **about) -> None:
    """Writes the dictionary, of the ``types`` after the special ones, and what else the task has to know.

    ``labels`` are the names of the labels 0, 1, …, and ``rows`` {split: how many}. ``about`` may have, of
    pictures, ``shape``, (height, width), and of values that are numbers ``pixels``, their {"mean", "std"}:
    type i is then the value i.
    """
    (folder / "dict.txt").write_text("".join(f"{name} 1\n" for name in types), encoding="utf-8")
    write_labels(folder, labels, rows, **about)


def write_labels(folder: Path, labels: Sequence[str], rows: dict, **about) -> None:
    """Writes what the task has to know of inputs, beside a dictionary if they are tokens."""
    inputs = len(list(folder.glob(f"{next(iter(rows))}.input?.idx")))
    content = {"inputs": inputs, "labels": list(labels), "rows": rows, **about}
    (folder / layouts.ABOUT).write_text(json.dumps(content, indent=1) + "\n")
