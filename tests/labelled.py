"""Shared by tests: small folders of labelled inputs, in the format of data_prep."""

import numpy as np

from data_prep.labelled import SPECIALS, write_dictionary, write_split

WORDS = [f"w{i}" for i in range(20)]
TYPES = len(WORDS) + SPECIALS


def texts(count, seed=0, longest=9, inputs=1, labels=2):
    """Yields rows of random words; the label is the parity of the number of first words."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        row = [draw.integers(SPECIALS, TYPES, draw.integers(1, longest)) for _ in range(inputs)]
        label = sum(int((text == SPECIALS).sum()) for text in row) % labels
        yield (*(text - SPECIALS for text in row), label)


def write_texts(folder, splits=("train", "valid", "test"), count=24, **how):
    """Writes a folder of texts, or of pairs of texts with ``inputs`` = 2."""
    folder.mkdir()
    rows = {
        split: write_split(folder, split, texts(count, seed, **how), len(WORDS))
        for seed, split in enumerate(splits)
    }
    write_dictionary(folder, WORDS, [f"label{i}" for i in range(how.get("labels", 2))], rows)
    return folder


def write_pictures(folder, size=4, count=24):
    """Writes a folder of gray images; the label is whether the upper half is brighter."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    rows = {}
    for split in ("train", "valid", "test"):
        pictures = draw.integers(0, 256, (count, size, size))
        labels = pictures[:, : size // 2].mean((1, 2)) > pictures[:, size // 2 :].mean((1, 2))
        found = [(x.ravel(), int(y)) for x, y in zip(pictures, labels, strict=True)]
        rows[split] = write_split(folder, split, found, 256)
    about = {"shape": [size, size], "pixels": {"mean": 127.5, "std": 127.5}}
    write_dictionary(folder, [str(i) for i in range(256)], ["down", "up"], rows, **about)
    return folder
