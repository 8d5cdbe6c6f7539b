"""Long-Range Arena's image classification: grayscale CIFAR-10 (Krizhevsky 2009), for ``classification``.

Colors are converted to grayscale by ITU-R 601, like Pillow's mode "L". The last tenth of the training images
is used for validation, unless there are validation images. Images from a folder or an archive are sorted by
name and interleaved by class, so that this tenth contains the last tenth of each class. Unreadable ones are
skipped and listed in OUT/bin/unreadable.txt.
"""

import io
import pickle
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.class_folders import (
    ACCEPTS,
    ImageFile,
    check_classes,
    in_class_folders,
    unpacked,
    with_validation,
)
from data_prep.corpus import add_number
from data_prep.fetch import FetchError, files_in
from data_prep.labelled import Labelled, check_readable
from data_prep.progress import progress
from fairseq_lrpe.data.image_files import decode, gray_pixels

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = r"(?:^|/)(data_batch_[1-5]|test_batch)$"
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
        return f"{self.published}, or {ACCEPTS} (default: download it)"

    def add_options(self, parser):
        text = "downscale images to N x N pixels by averaging (default: %(default)s)"
        add_number(parser, "--size", text, default=WIDTH)

    def source(self, args):
        if args.size > WIDTH:
            raise ValueError(f"--size {args.size} exceeds the {WIDTH} pixels of the images")
        return f"{super().source(args)} in {args.size} pixels"

    def check(self, args):
        source = self.archive(args)
        splits = read_batches(source, args.size) or self.read_images(source, args)
        names = {split: [name for _, name in rows] for split, rows in splits.items()}
        self.labels = sorted({*names["train"]})
        check_classes(names, source)
        return splits

    def read_images(self, source: Path, args: Namespace) -> dict[str, Rows]:
        """Returns {split: rows} of a folder or archive of images."""
        try:
            images = with_validation(in_class_folders(unpacked(source, args.out), source), source)
            if "test" not in images:
                raise ValueError(f"{source} has no test images: expected test/CLASS/*.jpg or other images")
            return {split: self.read(part, split, source, args.size) for split, part in images.items()}
        finally:
            shutil.rmtree(args.out / "unpacked", ignore_errors=True)

    def read(self, images: list[ImageFile], split: str, source: Path, size: int) -> Rows:
        """Returns the rows of the images of a split, and adds unreadable ones to ``self.unreadable``."""
        rows, unreadable = [], []
        for image in progress(images, f"reading {split}", "images"):
            name = f"{split}/{image.label}/{image.name}"
            try:
                grayscale = decode(image.read(), "L")
            except (ValueError, OSError) as error:
                unreadable.append(f"{name}: {error}")
                continue
            if grayscale.size != (WIDTH, WIDTH):
                found = f"{grayscale.width} x {grayscale.height} pixels instead of {WIDTH} x {WIDTH}"
                raise ValueError(f"{source}: {name} has {found}")
            rows.append((gray_pixels(grayscale, size, size), image.label))
        check_readable(unreadable, len(images))
        self.unreadable += unreadable
        return rows

    def splits(self, args, inputs):
        for split, rows in inputs.items():
            yield split, ((grayscale, self.labels.index(name)) for grayscale, name in rows), len(rows)

    def metadata(self, args: Namespace) -> dict:
        return {"shape": [args.size, args.size], "pixels": {"mean": 122.6, "std": 61.0}}


def read_batches(source: Path, size: int) -> dict[str, Rows]:
    """Returns {split: rows} of a folder or archive of CIFAR-10's batches, or {} if it has none."""
    batches = {}
    try:
        for match, content in files_in(source, BATCHES):
            batches[match[1]] = from_batch(content, f"{source}: {match[1]}", size)
    except FetchError:
        if batches:
            raise
        return {}
    test = batches.pop("test_batch", [])
    train = [row for batch in sorted(batches) for row in batches[batch]]
    if len(train) < 10 or not test:
        number = f"{len(train)} training images and {len(test)} test images"
        raise ValueError(f"{source} has {number}: expected at least 10 and 1")
    kept = len(train) - len(train) // 10
    return {"train": train[:kept], "valid": train[kept:], "test": test}


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
