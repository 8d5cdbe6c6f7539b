"""Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009)."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from data_prep.class_folders import ACCEPTS, ImageFile, check_classes, in_class_folders, with_validation
from data_prep.corpus import number
from data_prep.labelled import Labelled, check_readable
from data_prep.progress import progress
from fairseq_lrpe.data.image_files import decode, gray_pixels
from fairseq_lrpe.utils.files import visible_files

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}
"""Functions and classes that pickled arrays need; all others are rejected because unpickling calls them."""

Row = tuple[np.ndarray, str]  # (pixel values row by row, class) of an image


class Cifar10(Labelled):
    """Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009), for ``classification``.

    Colors are converted to grayscale by ITU-R 601, like Pillow's mode "L". The last tenth of the training
    images is used for validation, unless there are validation images. Images from a folder or an archive are
    sorted by name and interleaved by class, so that this tenth contains the last tenth of each class.
    Unreadable ones are skipped and listed in OUT/bin/unreadable.txt.
    """

    metavar = "FILE_OR_FOLDER"
    options: ClassVar = {
        "--size": number(
            "downscale images to N x N pixels by averaging (default: %(default)s)", default=WIDTH
        )
    }
    types: ClassVar = [str(value) for value in range(256)]

    @property
    def accepts(self):
        return f"{self.facts['archive']}, or {ACCEPTS} (default: download it)"

    def check(self, args):
        if args.size > WIDTH:
            raise ValueError(f"--size {args.size} exceeds the {WIDTH} pixels of the images")

    def splits(self, args):
        folder = self.archive(args)
        source = args.source or folder
        found = read_batches(folder, args.size)
        if not found:
            images = with_validation(in_class_folders(folder, source), source)
            found = {split: [*self.read(part, split, args.size)] for split, part in images.items()}
        names = {split: [name for _, name in rows] for split, rows in found.items()}
        check_classes(names, source)
        self.labels = sorted({*names["train"]})
        for split, rows in found.items():
            yield split, ((grayscale, self.labels.index(name)) for grayscale, name in rows), len(rows)

    def read(self, images: list[ImageFile], split: str, size: int) -> Iterator[Row]:
        """Yields the rows of the images of a split, and adds unreadable ones to ``self.unreadable``."""
        unreadable = []
        for image in progress(images, f"reading {split}", "images"):
            name = f"{split}/{image.label}/{image.name}"
            try:
                grayscale = decode(image.read(), "L")
            except (ValueError, OSError) as error:
                unreadable.append(f"{name}: {error}")
                continue
            if grayscale.size != (WIDTH, WIDTH):
                found = f"{grayscale.width} x {grayscale.height} pixels instead of {WIDTH} x {WIDTH}"
                raise ValueError(f"{name} has {found}")
            yield gray_pixels(grayscale, size, size), image.label
        check_readable(unreadable, len(images))
        self.unreadable += unreadable

    def metadata(self, args):
        return {"shape": [args.size, args.size], "pixels": {"mean": 122.6, "std": 61.0}}


def read_batches(folder: Path, size: int) -> dict[str, list[Row]]:
    """Returns {split: rows} of a folder with CIFAR-10's batches, or {} if it has none."""
    batches = {path.name: path for path in visible_files(folder) if path.name in BATCHES}
    if not batches:
        return {}
    train = [row for name in BATCHES[:-1] for row in from_batch(batches[name], size)]
    kept = len(train) - len(train) // 10
    return {"train": train[:kept], "valid": train[kept:], "test": from_batch(batches[BATCHES[-1]], size)}


class _Arrays(pickle.Unpickler):
    """An unpickler that only accepts arrays and plain values."""

    def find_class(self, module, name):
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def from_batch(path: Path, size: int) -> list[Row]:
    """Returns the images of one of CIFAR-10's pickled batches."""
    with path.open("rb") as file:
        batch = _Arrays(file, encoding="bytes").load()
    labels = [CLASSES[label] for label in batch[b"labels"]]
    planes = batch[b"data"].reshape(len(labels), 3, WIDTH, WIDTH).transpose(0, 2, 3, 1)
    images = (Image.fromarray(np.ascontiguousarray(rows)) for rows in progress(planes, path.name, "images"))
    return [(gray_pixels(image, size, size), label) for image, label in zip(images, labels, strict=True)]
