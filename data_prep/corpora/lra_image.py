"""Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009), for ``classification``.

Grayscale is ITU-R 601, as Pillow's "L". The last tenth of the training images is for validation. Images from
a folder or an archive are interleaved by class, in the order of their names, so that this tenth contains the
last tenth of each class.
"""

import io
import pickle
from argparse import Namespace
from collections import defaultdict
from operator import itemgetter

import numpy as np
from PIL import Image

from data_prep.corpus import add_number
from data_prep.fetch import files_in
from data_prep.labelled import Labelled
from data_prep.progress import progress
from fairseq_lrpe.data.image_files import decode

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = r"(?:^|/)(data_batch_[1-5]|test_batch)$"
IMAGES = r"(?:^|/)(train|test)/([^/]+)/([^/]+\.(?:jpe?g|png))$"
HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}
"""Globals of pickled arrays; all others are rejected because pickle would call them."""

Rows = list[tuple[np.ndarray, str]]


class Cifar10(Labelled):
    """CIFAR-10; ``inputs``: {split: (values, class) of each image}."""

    metavar = "FILE_OR_FOLDER"
    types = [str(value) for value in range(256)]

    @property
    def accepts(self):
        images = "a folder or an archive of images, {train,test}/CLASS/*.jpg or *.png"
        return f"{self.published}, or {images} (default: download it)"

    def add_options(self, parser):
        text = "width and height in pixels, downscaled by averaging (default: %(default)s)"
        add_number(parser, "--size", text, default=WIDTH)

    def source(self, args):
        if args.size > WIDTH:
            raise ValueError(f"--size {args.size} is more than the {WIDTH} pixels of the images")
        return f"{super().source(args)} in {args.size} pixels"

    def check(self, args):
        """Reads all images."""
        source = self.archive(args)
        train, test = read_splits(source, args.size)
        if len(train) < 10 or not test:
            raise ValueError(
                f"{source} has {len(train)} training and {len(test)} test images: download it again"
            )
        self.labels = sorted({name for _, name in train})
        if len(self.labels) < 2:
            raise ValueError(f"{source} has training images of {train[0][1]} only: two classes are needed")
        if unknown := {name for _, name in test}.difference(self.labels):
            raise ValueError(f"{source} has test images of {min(unknown)}, but no training images")
        kept = len(train) - len(train) // 10
        return {"train": train[:kept], "valid": train[kept:], "test": test}

    def splits(self, args, inputs):
        for split, rows in inputs.items():
            yield split, ((grayscale, self.labels.index(name)) for grayscale, name in rows), len(rows)

    def metadata(self, args: Namespace) -> dict:
        return {"shape": [args.size, args.size], "pixels": {"mean": 122.6, "std": 61.0}}


def read_splits(source, size: int) -> tuple[Rows, Rows]:
    """Returns the training and test images as (grayscale values row by row, class)."""
    batches, files = {}, {"train": defaultdict(list), "test": defaultdict(list)}
    for match, content in files_in(source, f"{BATCHES}|{IMAGES}"):
        if batch := match[1]:
            batches[batch] = from_batch(content, f"{source}: {batch}", size)
        else:
            split, name, file = match.group(2, 3, 4)
            image = from_file(content, f"{source}: {split}/{name}/{file}")
            files[split][name].append((file, resize(image, size)))
    if not batches:
        return interleave(files["train"]), interleave(files["test"])
    test = batches.pop("test_batch", [])
    return [row for batch in sorted(batches) for row in batches[batch]], test


def interleave(classes: dict[str, list[tuple[str, object]]]) -> list[tuple[object, str]]:
    """Interleaves images: the first by name of every class, then the second, etc."""
    ranked = [
        (rank, name, values)
        for name, part in classes.items()
        for rank, (_, values) in enumerate(sorted(part, key=itemgetter(0)))
    ]
    return [(values, name) for _, name, values in sorted(ranked, key=itemgetter(0, 1))]


def resize(image: Image.Image, size: int) -> np.ndarray:
    """Returns the values of a grayscale image, downscaled to ``size``, row by row."""
    return np.asarray(image if size == WIDTH else image.resize((size, size), Image.Resampling.BOX)).ravel()


def from_file(content: bytes, where: str) -> Image.Image:
    """Decodes a grayscale image of the expected size."""
    try:
        image = decode(content, "L")
    except ValueError as error:
        raise ValueError(f"{where} is not a complete image ({error}): download it again") from None
    if image.size != (WIDTH, WIDTH):
        raise ValueError(f"{where} has {image.width} x {image.height} pixels instead of {WIDTH} x {WIDTH}")
    return image


class _Arrays(pickle.Unpickler):
    """Unpickles only arrays and plain values."""

    def find_class(self, module, name):
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def from_batch(content: bytes, where: str, size: int) -> Rows:
    """Returns the images of a pickled batch with ``data`` and ``labels``."""
    try:
        batch = _Arrays(io.BytesIO(content), encoding="bytes").load()
        data, labels = np.asarray(batch[b"data"]), [CLASSES[label] for label in batch[b"labels"]]
        planes = data.reshape(len(labels), 3, WIDTH, WIDTH).transpose(0, 2, 3, 1)
        if data.dtype != np.uint8:
            raise ValueError(f"its values are {data.dtype}")
    except Exception as error:  # a malformed file can raise any exception
        raise ValueError(f"{where} is not a batch of CIFAR-10 ({error}): download it again") from None
    images = (Image.fromarray(np.ascontiguousarray(rows)) for rows in progress(planes, where, "images"))
    return [(resize(image.convert("L"), size), label) for image, label in zip(images, labels, strict=True)]
