"""Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009)."""

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.binarize import SPLITS
from data_prep.corpora.image_folders import ClassFolders, ImageFile, in_class_folders, with_validation
from data_prep.corpus import number
from data_prep.fetch import SOURCES
from data_prep.validation import check_one_folder
from fairseq_lrpe.data.image_files import decode, gray_pixels
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_regular, visible_files

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
# Functions and classes that pickled arrays need; all others are rejected because unpickling calls them.
HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class Cifar10(ClassFolders):
    """Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009), for ``classification``.

    Colors are converted to grayscale by ITU-R 601, like Pillow's mode "L". The last tenth of the training
    images is used for validation, unless there are validation images. Images from a folder or an archive are
    sorted by name and interleaved by class, so that this tenth contains about a tenth of each class.
    Unreadable images are skipped and listed in OUT/bin/unreadable.txt.
    """

    task = "classification"
    accepts = f"{SOURCES['lra_image']['archive']}, or {ClassFolders.accepts} (default: download it)"
    help = "downscale images to N x N pixels by averaging (default: %(default)s)"
    options = {"--size": number(help, default=WIDTH)}
    types = [*map(str, range(256))]

    def splits(self, args):
        folder = self.archive(args)
        batches = [path.parent for path in visible_files(folder) if path.name == BATCHES["test"][0]]
        if not batches:
            images = with_validation(in_class_folders(folder))
            yield from self.rows(images, partial(read_gray, size=args.size), args.workers)
            return
        check_one_folder(batches, folder)
        self.labels = CLASSES
        train = list(read_batches(batches[0], "train", args.size))
        test = list(read_batches(batches[0], "test", args.size))
        kept = len(train) - len(train) // 10
        for split, rows in zip(SPLITS, (train[:kept], train[kept:], test), strict=True):
            yield split, rows, len(rows)

    def metadata(self, args):
        return {"shape": [args.size, args.size], "pixels": {"mean": 122.6, "std": 61.0}}


def read_gray(image: ImageFile, size: int) -> np.ndarray:
    grayscale = decode(image.read(), "L")
    if grayscale.size != (WIDTH, WIDTH):
        size = f"{grayscale.width} x {grayscale.height} pixels"
        raise UserError(f"it has {size} instead of {WIDTH} x {WIDTH}: resize it")
    return gray_pixels(grayscale, size, size)


class _Arrays(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def read_batches(folder: Path, split: str, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields (gray values, row by row, index of the class) of each image in CIFAR-10's files of a split.

    Args:
        folder: folder of the files.
        split: "train" or "test".
        size: width and height in pixels to which images are downscaled.
    """
    for name in BATCHES[split]:
        path = folder / name
        check_regular(path)
        try:
            with path.open("rb") as file:
                batch = _Arrays(file, encoding="bytes").load()
        except (pickle.UnpicklingError, EOFError) as error:
            raise UserError(f"{path} is not one of CIFAR-10's files ({error}): download it again") from None
        planes = batch[b"data"].reshape(-1, 3, WIDTH, WIDTH).transpose(0, 2, 3, 1)
        for pixels, label in zip(planes, batch[b"labels"], strict=True):
            yield gray_pixels(Image.fromarray(np.ascontiguousarray(pixels)), size, size), label
