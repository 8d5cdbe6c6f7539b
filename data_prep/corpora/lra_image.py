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
from PIL import Image, UnidentifiedImageError

from data_prep.fetch import SOURCES, fetch, files_in
from data_prep.labelled import SPECIALS, Labelled, as_types, write_dictionary, write_split
from data_prep.progress import progress
from data_prep.validation import folder_with_source
from fairseq_lrpe.utils.cli import min_int

FACTS = SOURCES["lra_image"]
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = r"(?:^|/)(data_batch_[1-5]|test_batch)$"
IMAGES = r"(?:^|/)(train|test)/([^/]+)/([^/]+\.(?:jpe?g|png))$"
VALUES = [str(value) for value in range(256)]
PIXELS = {"mean": 122.6, "std": 61.0}
HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}
"""Globals of pickled arrays; all others are rejected because pickle would call them."""

Rows = list[tuple[np.ndarray, str]]


class Cifar10(Labelled):
    """CIFAR-10; ``inputs``: {split: (values, class) of each image}, or None before the download."""

    metavar = "FILE_OR_FOLDER"
    published = FACTS["archive"]
    accepts = (
        f"{published}, or a folder or an archive of images, {{train,test}}/CLASS/*.jpg or *.png "
        "(default: download it)"
    )

    def add_options(self, parser):
        text = "width and height in pixels, downscaled by averaging (default: %(default)s)"
        parser.add_argument("--size", type=min_int(1), default=WIDTH, metavar="N", help=text)

    def source(self, args):
        if args.size > WIDTH:
            raise ValueError(f"--size {args.size} is more than the {WIDTH} pixels of the images")
        return f"{super().source(args)} in {args.size} pixels"

    def check(self, args):
        return images_of(args) if args.source else None

    def prepare(self, args, source, inputs):
        splits, rows = inputs or images_of(args), {}
        names = sorted({name for part in splits.values() for _, name in part})
        with folder_with_source(args.out / "bin", source) as part:
            for split, values in splits.items():
                encoded = ((as_types(grey), names.index(name)) for grey, name in values)
                rows[split] = write_split(part, split, encoded, len(VALUES) + SPECIALS, len(values))
            write_dictionary(part, VALUES, names, rows, shape=[args.size, args.size], pixels=PIXELS)


def images_of(args: Namespace) -> dict[str, Rows]:
    """Returns {split: (grayscale values row by row, class) of each image}."""
    source = args.source or fetch(args.out / FACTS["archive"], FACTS)
    batches, files = {}, {"train": defaultdict(list), "test": defaultdict(list)}
    for match, content in files_in(source, f"{BATCHES}|{IMAGES}"):
        if batch := match[1]:
            batches[batch] = from_batch(content, f"{source}: {batch}", args.size)
        else:
            split, name, file = match.group(2, 3, 4)
            image = from_file(content, f"{source}: {split}/{name}/{file}")
            files[split][name].append((file, grey(image, args.size)))
    splits = {split: interleave(classes) for split, classes in files.items()}
    if batches:
        splits = {"test": batches.pop("test_batch", [])}
        splits["train"] = [row for batch in sorted(batches) for row in batches[batch]]
    train, test = splits["train"], splits["test"]
    if len(train) < 10 or not test:
        raise ValueError(
            f"{source} has {len(train)} training images and {len(test)} for test: download it again"
        )
    if len({name for _, name in train}) < 2:
        raise ValueError(f"{source} has training images of {train[0][1]} alone: more classes are needed")
    if unknown := {name for _, name in test} - {name for _, name in train}:
        raise ValueError(f"{source} has test images of {min(unknown)}, and none for training")
    kept = len(train) - len(train) // 10
    return {"train": train[:kept], "valid": train[kept:], "test": test}


def interleave(classes: dict[str, list[tuple[str, np.ndarray]]]) -> Rows:
    """Interleaves the images of all classes: the first by name of every class, then the second, etc."""
    ranked = [
        (rank, name, values)
        for name, part in classes.items()
        for rank, (_, values) in enumerate(sorted(part, key=itemgetter(0)))
    ]
    return [(values, name) for _, name, values in sorted(ranked, key=itemgetter(0, 1))]


def grey(image: Image.Image, size: int) -> np.ndarray:
    """Returns the grayscale values of an image, row by row."""
    image = image.convert("L")
    return np.asarray(image if size == WIDTH else image.resize((size, size), Image.Resampling.BOX)).ravel()


def from_file(content: bytes, where: str) -> Image.Image:
    """Decodes an image; raises ValueError if it is damaged or has another size."""
    try:
        image = Image.open(io.BytesIO(content))
        size = image.size
        if size == (WIDTH, WIDTH):
            image.load()
    except UnidentifiedImageError:  # its message contains a memory address
        raise ValueError(f"{where} is no image: download it again") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{where} is no complete image ({error}): download it again") from None
    if size != (WIDTH, WIDTH):
        raise ValueError(f"{where} has {size[0]} x {size[1]} pixels instead of {WIDTH} x {WIDTH}")
    return image


class _Arrays(pickle.Unpickler):
    """Unpickles only arrays and plain values."""

    def find_class(self, module, name):
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def from_batch(content: bytes, where: str, size: int) -> Rows:
    """Returns the images of a pickled batch with ``data``, rows of red, green and blue, and ``labels``."""
    try:
        batch = _Arrays(io.BytesIO(content), encoding="bytes").load()
        data, labels = np.asarray(batch[b"data"]), [CLASSES[label] for label in batch[b"labels"]]
        planes = data.reshape(len(labels), 3, WIDTH, WIDTH).transpose(0, 2, 3, 1)
        if data.dtype != np.uint8:
            raise ValueError(f"its values are {data.dtype}")
    except Exception as error:  # a malformed file can raise any exception
        raise ValueError(f"{where} is no batch of CIFAR-10 ({error}): download it again") from None
    bar = progress(planes, where, "images")
    images = (Image.fromarray(np.ascontiguousarray(rows)) for rows in bar)
    return [(grey(image, size), label) for image, label in zip(images, labels, strict=True)]
