"""Small prepared data sets for the task ``classification``."""

import numpy as np

from data_prep.labeled import SPECIALS, write_dictionary, write_split

WORDS = [f"w{i}" for i in range(20)]
TYPES = len(WORDS) + SPECIALS


def random_texts(count, seed=0, longest=9, inputs=1, labels=2):
    """Yields ``count`` rows (word indices of each input ..., label).

    The label is the number of occurrences of the first word, modulo ``labels``.
    """
    draw = np.random.default_rng(seed)
    for _ in range(count):
        row = [draw.integers(SPECIALS, TYPES, draw.integers(1, longest)) for _ in range(inputs)]
        label = sum(int((text == SPECIALS).sum()) for text in row) % labels
        yield (*(text - SPECIALS for text in row), label)


def write_text_dataset(folder, splits=("train", "valid", "test"), count=24, **options):
    folder.mkdir()
    rows = {
        split: write_split(folder, split, random_texts(count, seed, **options), len(WORDS))
        for seed, split in enumerate(splits)
    }
    write_dictionary(folder, WORDS, [f"label{i}" for i in range(options.get("labels", 2))], rows)
    return folder


def write_gray_image_dataset(folder, size=4, count=24):
    """Writes a data set of random gray images, labeled "up" if the upper half is brighter, else "down"."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    rows = {}
    for split in ("train", "valid", "test"):
        images = draw.integers(0, 256, (count, size, size))
        labels = images[:, : size // 2].mean((1, 2)) > images[:, size // 2 :].mean((1, 2))
        labeled = [(x.ravel(), int(y)) for x, y in zip(images, labels, strict=True)]
        rows[split] = write_split(folder, split, labeled, 256)
    metadata = {"shape": [size, size], "pixels": {"mean": 127.5, "std": 127.5}}
    write_dictionary(folder, [str(i) for i in range(256)], ["down", "up"], rows, **metadata)
    return folder
