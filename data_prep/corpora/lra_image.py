"""Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009)."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from data_prep.corpora.image_folders import (
    ACCEPTS,
    ImageFile,
    check_classes,
    in_class_folders,
    with_validation,
)
from data_prep.corpus import number
from data_prep.fetch import SOURCES
from data_prep.labelled import Labelled
from data_prep.parallel import progress
from fairseq_lrpe.data.image_files import decode, gray_pixels
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import visible_files

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
# Functions and classes that pickled arrays need; all others are rejected because unpickling calls them.
HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}

Row = tuple[np.ndarray, str]  # (pixel values row by row, class) of an image


class Cifar10(Labelled):
    """Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009), for ``classification``.

    Colors are converted to grayscale by ITU-R 601, like Pillow's mode "L". The last tenth of the training
    images is used for validation, unless there are validation images. Images from a folder or an archive are
    sorted by name and interleaved by class, so that this tenth contains about a tenth of each
    class. Unreadable ones are skipped and listed in OUT/bin/unreadable.txt.
    """

    metavar = "FILE_OR_FOLDER"
    accepts = f"{SOURCES['lra_image']['archive']}, or {ACCEPTS} (default: download it)"
    help = "downscale images to N x N pixels by averaging (default: %(default)s)"
    options: ClassVar = {"--size": number(help, default=WIDTH)}
    types: ClassVar = [str(value) for value in range(256)]

    def check(self, args):
        if args.size > WIDTH:
            raise UserError(f"--size {args.size} exceeds the {WIDTH} pixels of the images: reduce it")

    def splits(self, args):
        folder = self.archive(args)
        found = read_batches(folder, args.size)
        if not found:
            for split, images in with_validation(in_class_folders(folder)).items():
                bar = progress(images, f"reading {split}", "images")
                rows = (read(image, split, args.size) for image in bar)
                found[split] = [*self.readable(rows, len(images))]
        names = {split: [name for _, name in rows] for split, rows in found.items()}
        check_classes(names)
        self.labels = sorted({*names["train"]})
        for split, rows in found.items():
            yield split, ((grayscale, self.labels.index(name)) for grayscale, name in rows), len(rows)

    def metadata(self, args):
        return {"shape": [args.size, args.size], "pixels": {"mean": 122.6, "std": 61.0}}


def read(image: ImageFile, split: str, size: int) -> tuple[Row | None, str]:
    name = f"{split}/{image.label}/{image.name}"
    try:
        grayscale = decode(image.read(), "L")
    except (ValueError, OSError) as error:
        return None, f"{name}: {error}"
    if grayscale.size != (WIDTH, WIDTH):
        found = f"{grayscale.width} x {grayscale.height} pixels instead of {WIDTH} x {WIDTH}"
        raise UserError(f"{name} has {found}: resize the image")
    return (gray_pixels(grayscale, size, size), image.label), ""


def read_batches(folder: Path, size: int) -> dict[str, list[Row]]:
    batches = {path.name: path for path in visible_files(folder) if path.name in BATCHES}
    if not batches:
        return {}
    if missing := [name for name in BATCHES if name not in batches]:
        raise UserError(f"{folder} lacks {', '.join(missing)}: add these files of CIFAR-10")
    train = [row for name in BATCHES[:-1] for row in from_batch(batches[name], size)]
    kept = len(train) - len(train) // 10
    return {"train": train[:kept], "valid": train[kept:], "test": [*from_batch(batches[BATCHES[-1]], size)]}


class _Arrays(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def from_batch(path: Path, size: int) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            batch = _Arrays(file, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise UserError(f"{path} is not one of CIFAR-10's files ({error}): download it again") from None
    planes = batch[b"data"].reshape(-1, 3, WIDTH, WIDTH).transpose(0, 2, 3, 1)
    for pixels, label in zip(planes, batch[b"labels"], strict=True):
        yield gray_pixels(Image.fromarray(np.ascontiguousarray(pixels)), size, size), CLASSES[label]
