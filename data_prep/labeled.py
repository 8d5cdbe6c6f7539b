"""Base classes of labeled corpora, and functions that write the files of binarized labeled data."""

import json
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import shorten

import numpy as np
import torch

from data_prep.binarize import SPLITS
from data_prep.corpus import Corpus, compared, number
from data_prep.parallel import ordered_map, progress
from fairseq_lrpe.data.layout import METADATA, read_metadata
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import write_lines

UNREADABLE = "unreadable.txt"  # lists the images that were left out
BLOCK = 20  # images that a worker process reads or generates at a time
SPECIALS = 4  # special symbols that fairseq puts before a dictionary's own: <s>, <pad>, </s> and <unk>
UNKNOWN = -1  # index of an unknown word in the rows of a split
TRAIN_ROWS = {"--train-rows": number("use only the first N rows of each training set")}


class Labeled(Corpus):
    """Base class of corpora for the tasks ``classification`` and ``image_classification``.

    ``types`` are the symbols of the dictionary without fairseq's special symbols; it is empty if the inputs
    are the bytes of image files. ``labels`` are the names of the classes.
    """

    task = "classification"
    types: Sequence[str]
    labels: Sequence[str]

    def __init__(self, name: str):
        super().__init__(name)
        self.unreadable: list[str] = []  # name and error of each image that cannot be decoded

    def splits(self, args: Namespace) -> Iterator[tuple[str, Iterable[tuple], int | None]]:
        """Yields (split, rows for :func:`write_split`, number of rows) of each split.

        The number of rows, which progress bars show, is None if it is unknown.
        """
        raise NotImplementedError

    def metadata(self, args: Namespace) -> dict:
        return {}

    def prepare(self, args, folder):
        counts = {}
        with closing(self.splits(args)) as splits:
            for split, rows, total in splits:
                counts[split] = write_split(folder, split, rows, len(self.types), total)
        if self.unreadable:
            write_lines(folder / UNREADABLE, self.unreadable)
        write_dictionary(folder, self.types, self.labels, counts, **self.metadata(args))

    def readable(self, read: Callable, images: list[tuple[object, tuple]], workers: int) -> Iterator[tuple]:
        """Yields (image, ``read(image)``) of each image that can be decoded.

        The names of other images are added to ``unreadable``, with the errors.

        Args:
            read: function that returns the values of an image.
            images: [(name, image)].
            workers: number of processes.

        Raises:
            UserError: at the end, if more than half of the images are unreadable.
            OSError: if a file cannot be read.
        """
        before = len(self.unreadable)
        total = len(images)
        contents = [image for _, image in images]
        with closing(ordered_map(partial(try_read, read), contents, workers, BLOCK)) as results:
            for (name, image), (values, error) in zip(images, results, strict=True):
                if values is None:
                    self.unreadable.append(f"{name}: {error}")
                else:
                    yield image, values
        count = len(self.unreadable) - before
        if 2 * count > total:
            example = f"for example {self.unreadable[-1]}"
            raise UserError(f"{count:,} of {total:,} images are unreadable, {example}: repair or remove them")

    def vocabulary(self, data):
        return super().vocabulary(data) if (data / "dict.txt").is_file() else ""

    def published_rows(self, args: Namespace) -> dict[str, int]:
        return self.facts.get("rows", {})

    def report(self, args):
        file = args.out / "bin" / UNREADABLE
        if file.is_file():
            print(f"skipped: {len(file.read_text().splitlines()):,} unreadable images, see {file}")
        metadata = read_metadata(args.out / "bin")
        print(f"rows: {compared(metadata['rows'], self.published_rows(args))}")
        print(f"labels: {shorten(', '.join(metadata['labels']), width=200)}")
        super().report(args)


class Generated(Labeled):
    """Base class of corpora that are generated or, with --from, read from published files.

    The same options give the same bytes on every machine and with any number of processes. All options have
    defaults and affect generated data only.
    """

    def check(self, args):
        for option, settings in self.options.items():
            if args.source and getattr(args, option[2:].replace("-", "_")) != settings["default"]:
                raise UserError(f"{option} is for generated data, not for --from: omit one of the two")

    def published_rows(self, args):
        return super().published_rows(args) if args.source else {}

    def generated(self, args: Namespace) -> Iterator[tuple]:
        """Yields generated rows, at least as many as --rows requests for all splits together."""
        raise NotImplementedError

    def published(self, args: Namespace) -> Iterator[tuple[str, Iterable[tuple], int]]:
        raise NotImplementedError

    def splits(self, args):
        if args.source:
            yield from self.published(args)
            return
        with closing(self.generated(args)) as rows:
            for split, count in zip(SPLITS, args.rows, strict=True):
                yield split, islice(rows, count), count


def numbers(default: list[int], minimum: int, text: str, metavar: str | tuple = "N") -> dict:
    text = f"{text} (default: {' '.join(map(str, default))})"
    return {**number(text, minimum), "nargs": len(default), "metavar": metavar, "default": default}


def rows_and_seed(default: list[int]) -> dict[str, dict]:
    return {
        "--rows": numbers(default, 1, "numbers of rows of the splits", ("TRAIN", "VALID", "TEST")),
        "--seed": numbers([1], 0, "seed of the generator"),
    }


def try_read(read: Callable, image: tuple) -> tuple[np.ndarray | None, str]:
    warnings.simplefilter("ignore")  # Pillow warns about defects that it tolerates
    try:
        return read(image), ""
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # an error of the file system, not of the image
            error.filename = error.filename or path_in(image)
            raise
        return None, str(error)


def path_in(image: tuple) -> str | None:
    """Returns the first path in the fields of an image as text, or None without a path."""
    for field in image:
        if isinstance(field, Path):
            return str(field)
    return None


def dataset_builder(prefix: Path, types: int):
    """Returns fairseq's builder of the file ``prefix``.bin.

    Its rows are indices into a dictionary of ``types`` symbols, or bytes if ``types`` is 0.
    """
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

    dtype = (np.uint16 if types <= 1 << 16 else np.int32) if types else np.uint8
    return MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)


def write_split(folder: Path, split: str, rows: Iterable[tuple], types: int, total: int | None = None) -> int:
    """Writes the files of a split and returns its number of rows.

    Rows are (values of each input ..., label). Values are indices into a dictionary of ``types`` symbols, or
    UNKNOWN; if ``types`` is 0, they are bytes. The label is the index of a class, or -1 if it is unknown.
    """
    specials = SPECIALS if types else 0
    builders = []
    labels = []
    for *inputs, label in progress(rows, f"writing {split}", "rows", total=total):
        if not builders:  # the first row says how many inputs there are
            for number in range(len(inputs)):
                builders.append(dataset_builder(folder / f"{split}.input{number}", types + specials))
        for builder, values in zip(builders, inputs, strict=True):
            builder.add_item(torch.from_numpy(np.asarray(values, dtype=np.int64) + specials))
        labels.append(label)
    for number, builder in enumerate(builders):
        builder.finalize(f"{folder / split}.input{number}.idx")
    np.save(folder / f"{split}.label.npy", np.array(labels, dtype=np.int64))
    return len(labels)


def write_dictionary(folder: Path, types: Sequence[str], labels: Sequence[str], rows: dict, **metadata):
    """Writes dict.txt, if there are ``types``, and the file that ``data.layout.read_metadata`` reads.

    This function must be called after :func:`write_split` of every split, because it counts their files.

    Args:
        folder: the folder of the splits.
        types: the symbols of the dictionary.
        labels: the names of the classes.
        rows: {split: number of rows}.
        metadata: further entries of the metadata.
    """
    if types:
        write_lines(folder / "dict.txt", (f"{name} 1" for name in types))
    inputs = len(list(folder.glob(f"{next(iter(rows))}.input?.idx")))
    content = {"inputs": inputs, "labels": list(labels), "rows": rows, **metadata}
    (folder / METADATA).write_text(json.dumps(content, indent=1) + "\n")
