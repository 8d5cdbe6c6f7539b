"""Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009), for ``classification``.

Colors are converted to grayscale by ITU-R 601, like Pillow's mode "L". The last tenth of the training images
is used for validation. Images from a folder or an archive are sorted by name and interleaved by class, so
that this tenth contains the last tenth of each class.
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
from fairseq_lrpe.data.image_files import decode, gray_pixels

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = r"(?:^|/)(data_batch_[1-5]|test_batch)$"
IMAGES = r"(?:^|/)(train|test)/([^/]+)/([^/]+\.(?:jpe?g|png))$"
HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}
"""Functions and classes that pickled arrays need; all others are rejected because unpickling calls them."""

Rows = list[tuple[np.ndarray, str]]  # (pixel values row by row, class) of each image


class Cifar10(Labelled):
    """CIFAR-10 in grayscale; ``check`` returns {split: rows}."""

    metavar = "FILE_OR_FOLDER"
    types = [str(value) for value in range(256)]

    @property
    def accepts(self):
        images = "a folder or an archive of images, {train,test}/CLASS/*.jpg or *.png"
        return f"{self.published}, or {images} (default: download it)"

    def add_options(self, parser):
        text = "downscale images to N x N pixels by averaging (default: %(default)s)"
        add_number(parser, "--size", text, default=WIDTH)

    def source(self, args):
        if args.size > WIDTH:
            raise ValueError(f"--size {args.size} exceeds the {WIDTH} pixels of the images")
        return f"{super().source(args)} in {args.size} pixels"

    def check(self, args):
        source = self.archive(args)
        train, test = read_splits(source, args.size)
        if len(train) < 10 or not test:
            number = f"{len(train)} training images and {len(test)} test images"
            raise ValueError(f"{source} has {number}: expected at least 10 and 1")
        self.labels = sorted({name for _, name in train})
        if len(self.labels) < 2:
            only = f"training images of only one class, {train[0][1]}"
            raise ValueError(f"{source} has {only}: expected at least two classes")
        if unknown := {name for _, name in test}.difference(self.labels):
            name = f"the class {min(unknown)}"
            raise ValueError(f"{source} has test images of {name}, which has no training images")
        kept = len(train) - len(train) // 10
        return {"train": train[:kept], "valid": train[kept:], "test": test}

    def splits(self, args, inputs):
        for split, rows in inputs.items():
            yield split, ((grayscale, self.labels.index(name)) for grayscale, name in rows), len(rows)

    def metadata(self, args: Namespace) -> dict:
        return {"shape": [args.size, args.size], "pixels": {"mean": 122.6, "std": 61.0}}


def read_splits(source, size: int) -> tuple[Rows, Rows]:
    """Returns the training images and the test images of a folder or archive."""
    batches, files = {}, {"train": defaultdict(list), "test": defaultdict(list)}
    for match, content in files_in(source, f"{BATCHES}|{IMAGES}"):
        if batch := match[1]:
            batches[batch] = from_batch(content, f"{source}: {batch}", size)
        else:
            split, name, file = match.group(2, 3, 4)
            image = from_file(content, f"{source}: {split}/{name}/{file}")
            files[split][name].append((file, gray_pixels(image, size, size)))
    if not batches:
        return interleave(files["train"]), interleave(files["test"])
    test = batches.pop("test_batch", [])
    return [row for batch in sorted(batches) for row in batches[batch]], test


def interleave(classes: dict[str, list[tuple[str, object]]]) -> list[tuple[object, str]]:
    """Returns [(image, class)] of {class: [(name, image)]}: each class's first by name, then each second."""
    ranked = [
        (rank, name, values)
        for name, part in classes.items()
        for rank, (_, values) in enumerate(sorted(part, key=itemgetter(0)))
    ]
    return [(values, name) for _, name, values in sorted(ranked, key=itemgetter(0, 1))]


def from_file(content: bytes, where: str) -> Image.Image:
    """Decodes an image file of 32 x 32 pixels to grayscale; ``where`` is its name for error messages."""
    try:
        image = decode(content, "L")
    except ValueError as error:
        raise ValueError(f"{where} is not a complete image ({error}): download it again") from None
    if image.size != (WIDTH, WIDTH):
        raise ValueError(f"{where} has {image.width} x {image.height} pixels instead of {WIDTH} x {WIDTH}")
    return image


class _Arrays(pickle.Unpickler):
    """An unpickler that only accepts arrays and plain values."""

    def find_class(self, module, name):
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def from_batch(content: bytes, where: str, size: int) -> Rows:
    """Returns the images of one of CIFAR-10's pickled batches; ``where`` is its name for error messages."""
    try:
        batch = _Arrays(io.BytesIO(content), encoding="bytes").load()
        data, labels = np.asarray(batch[b"data"]), [CLASSES[label] for label in batch[b"labels"]]
        planes = data.reshape(len(labels), 3, WIDTH, WIDTH).transpose(0, 2, 3, 1)
        if data.dtype != np.uint8:
            raise ValueError(f"its values are {data.dtype}")
    except Exception as error:  # a malformed file can raise any exception
        raise ValueError(f"{where} is not a batch of CIFAR-10 ({error}): download it again") from None
    images = (Image.fromarray(np.ascontiguousarray(rows)) for rows in progress(planes, where, "images"))
    return [(gray_pixels(image, size, size), label) for image, label in zip(images, labels, strict=True)]
