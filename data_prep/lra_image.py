"""CIFAR-10's pictures in grey (Krizhevsky 2009), row by row -> binaries for our task classification.

They are Long-Range Arena's: grey is ITU-R 601's, as Pillow's "L", and the last tenth of the training pictures
is for validation. In a folder or an archive of pictures the classes take turns, by name, each with its
pictures in the order of their names, so that this tenth has the last tenth of each class.
"""

import io
import pickle
from argparse import Namespace
from collections import defaultdict
from operator import itemgetter

import numpy as np
from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from data_prep.classified import SPECIALS, as_types, write_about, write_split
from data_prep.door import noted_folder
from data_prep.fetch import SOURCES, fetch, files_in
from data_prep.labelled import Labelled
from data_prep.progress import AFTER
from fairseq_lrpe.programs import at_least

FACTS = SOURCES["lra_image"]
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
WIDTH = 32
BATCHES = r"(?:^|/)(data_batch_[1-5]|test_batch)$"
PICTURES = r"(?:^|/)(train|test)/([^/]+)/([^/]+\.(?:jpe?g|png))$"
VALUES = [str(value) for value in range(256)]
PIXELS = {"mean": 122.6, "std": 61.0}
HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}
"""What a pickled array is made of; pickle would call anything else that a file names."""

Rows = list[tuple[np.ndarray, str]]


class Pictures(Labelled):
    """CIFAR-10; ``found``: {split: (values, class) of each picture}, None if that is still to be fetched."""

    metavar = "FILE_OR_FOLDER"
    published = FACTS["archive"]
    accepts = (
        f"{published}, or a folder or an archive of pictures, {{train,test}}/CLASS/*.jpg or *.png "
        "(default: download it)"
    )

    def add_options(self, parser):
        told = "pixels of each side, fewer by the mean of each area (default: %(default)s)"
        parser.add_argument("--size", type=at_least(1), default=WIDTH, metavar="N", help=told)

    def source(self, args):
        if args.size > WIDTH:
            raise ValueError(f"--size {args.size} is more than the {WIDTH} pixels that the pictures have")
        return f"{super().source(args)} in {args.size} pixels"

    def check(self, args):
        return pictures(args) if args.source else None

    def prepare(self, args, source, found):
        found, rows = found or pictures(args), {}
        names = sorted({name for part in found.values() for _, name in part})
        with noted_folder(args.out / "bin", source) as part:
            for split, values in found.items():
                encoded = ((as_types(grey), names.index(name)) for grey, name in values)
                rows[split] = write_split(part, split, encoded, len(VALUES) + SPECIALS, len(values))
            write_about(part, VALUES, names, rows, shape=[args.size, args.size], pixels=PIXELS)


def pictures(args: Namespace) -> dict[str, Rows]:
    """Returns {split: (grey values row by row, class) of each picture}."""
    source = args.source or fetch(args.out / FACTS["archive"], FACTS)
    batches, files = {}, {"train": defaultdict(list), "test": defaultdict(list)}
    for match, content in files_in(source, f"{BATCHES}|{PICTURES}"):
        if batch := match[1]:
            batches[batch] = from_batch(content, f"{source}: {batch}", args.size)
        else:
            split, name, file = match.group(2, 3, 4)
            image = from_file(content, f"{source}: {split}/{name}/{file}")
            files[split][name].append((file, grey(image, args.size)))
    found = {split: in_turns(classes) for split, classes in files.items()}
    if batches:
        found = {"test": batches.pop("test_batch", [])}
        found["train"] = [row for batch in sorted(batches) for row in batches[batch]]
    train, test = found["train"], found["test"]
    if len(train) < 10 or not test:
        raise ValueError(
            f"{source} has {len(train)} training pictures and {len(test)} for test: get it again"
        )
    if len({name for _, name in train}) < 2:
        raise ValueError(f"{source} has training pictures of {train[0][1]} alone: more classes are needed")
    if unknown := {name for _, name in test} - {name for _, name in train}:
        raise ValueError(f"{source} has test pictures of {min(unknown)}, and none for training")
    kept = len(train) - len(train) // 10
    return {"train": train[:kept], "valid": train[kept:], "test": test}


def in_turns(classes: dict[str, list[tuple[str, np.ndarray]]]) -> Rows:
    """Returns the pictures of all classes, sorted by name: the first of every class, then the second ones."""
    ranked = [
        (rank, name, values)
        for name, part in classes.items()
        for rank, (_, values) in enumerate(sorted(part, key=itemgetter(0)))
    ]
    return [(values, name) for _, name, values in sorted(ranked, key=itemgetter(0, 1))]


def grey(image: Image.Image, size: int) -> np.ndarray:
    """Returns the values of a picture, row by row."""
    image = image.convert("L")
    return np.asarray(image if size == WIDTH else image.resize((size, size), Image.Resampling.BOX)).ravel()


def from_file(content: bytes, where: str) -> Image.Image:
    """Returns the picture of a file; ValueError if it is damaged or of another size."""
    try:
        image = Image.open(io.BytesIO(content))
        size = image.size
        if size == (WIDTH, WIDTH):
            image.load()
    except UnidentifiedImageError:  # its words are of the place in memory
        raise ValueError(f"{where} is no picture: get it again") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{where} is no whole picture ({error}): get it again") from None
    if size != (WIDTH, WIDTH):
        raise ValueError(f"{where} has {size[0]} x {size[1]} pixels instead of {WIDTH} x {WIDTH}")
    return image


class _Arrays(pickle.Unpickler):
    """What reads arrays and plain values alone."""

    def find_class(self, module, name):
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def from_batch(content: bytes, where: str, size: int) -> Rows:
    """Returns the pictures of a pickled batch: ``data``, rows of red, green and blue, and ``labels``."""
    try:
        batch = _Arrays(io.BytesIO(content), encoding="bytes").load()
        data, labels = np.asarray(batch[b"data"]), [CLASSES[label] for label in batch[b"labels"]]
        planes = data.reshape(len(labels), 3, WIDTH, WIDTH).transpose(0, 2, 3, 1)
        if data.dtype != np.uint8:
            raise ValueError(f"its values are {data.dtype}")
    except Exception as error:  # a file that somebody made can end in any
        raise ValueError(f"{where} is no batch of CIFAR-10 ({error}): get it again") from None
    shown = {"desc": where, "unit": "pictures", "disable": None, "delay": AFTER, "leave": False}
    images = (Image.fromarray(np.ascontiguousarray(rows)) for rows in tqdm(planes, **shown))
    return [(grey(image, size), label) for image, label in zip(images, labels, strict=True)]
