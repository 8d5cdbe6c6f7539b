"""Base classes of labeled corpora, and functions that write the files of their binarized data."""

import json
import logging
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from data_prep.binarize import SPLITS
from data_prep.corpus import Corpus, number
from data_prep.parallel import progress
from fairseq_lrpe.data.layout import METADATA, read_metadata
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import write_lines

MAX_LABELS_SHOWN = 20
UNREADABLE = "unreadable.txt"  # lists the images that were left out
SPECIALS = 4  # special symbols that fairseq puts before a dictionary's own: <s>, <pad>, </s> and <unk>
UNKNOWN = -1  # index of an unknown word in the rows of a split
TRAIN_ROWS = {"--train-rows": number("use only the first N rows of each training set")}

Row = TypeVar("Row")


class Labelled(Corpus):
    """Base class of corpora for the tasks ``classification`` and ``image_classification``.

    ``types`` are the symbols of the dictionary without fairseq's special ones, ``labels`` the names of the
    classes, and ``unreadable`` the path and reason of each image that cannot be decoded.
    """

    task = "classification"
    types: Sequence[str]
    labels: Sequence[str]

    def __init__(self, name: str):
        super().__init__(name)
        self.unreadable: list[str] = []

    def splits(self, args: Namespace) -> Iterator[tuple[str, Iterable[tuple], int | None]]:
        """Yields (split, rows for :func:`write_split`, number of rows or None if unknown)."""
        raise NotImplementedError

    def metadata(self, args: Namespace) -> dict:
        return {}

    def prepare(self, args, folder):
        counts = {}
        with closing(self.splits(args)) as splits:
            for split, rows, total in splits:
                counts[split] = write_split(folder, split, rows, len(self.types), total)
        self.write_unreadable(folder)
        write_dictionary(folder, self.types, self.labels, counts, **self.metadata(args))

    def readable(self, images: Iterable[tuple[Row, str]], total: int) -> Iterator[Row]:
        """Yields the row of each (row, error) with an empty error, and adds other errors to ``unreadable``.

        Raises:
            UserError: At the end, if most of the ``total`` images are unreadable.
        """
        before = len(self.unreadable)
        for row, error in images:
            if error:
                self.unreadable.append(error)
            else:
                yield row
        if 2 * (count := len(self.unreadable) - before) > total:
            example = f"for example {self.unreadable[-1]}"
            raise UserError(f"{count:,} of {total:,} images are unreadable, {example}; repair or remove them")

    def write_unreadable(self, folder: Path) -> None:
        if self.unreadable:
            write_lines(folder / UNREADABLE, self.unreadable)

    def published_rows(self, args: Namespace) -> dict[str, int]:
        return self.facts.get("rows", {})

    def report(self, args):
        file = args.out / "bin" / UNREADABLE
        if file.is_file():
            print(f"skipped: {len(file.read_text().splitlines()):,} unreadable images, see {file}")
        metadata = read_metadata(args.out / "bin")
        print_rows(metadata["rows"], self.published_rows(args))
        labels = metadata["labels"]
        more = f", ... ({len(labels):,} in total)" if len(labels) > MAX_LABELS_SHOWN else ""
        print(f"labels: {', '.join(labels[:MAX_LABELS_SHOWN])}{more}")
        super().report(args)


class Generated(Labelled):
    """Base class of corpora that are generated or, with --from, read from published files.

    The same options give the same bytes on every machine and with any number of processes. All options have
    defaults and are for generated data.
    """

    def check(self, args):
        for option, settings in self.options.items():
            if args.source and getattr(args, option[2:].replace("-", "_")) != settings["default"]:
                raise UserError(f"{option} is for generated data: it cannot be combined with --from")

    def generated(self, args: Namespace) -> Iterator[tuple]:
        """Yields at least as many generated rows as --rows requests for all splits together."""
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


def print_rows(rows: dict[str, int], published: dict[str, int]) -> None:
    found, expected = (
        ", ".join(f"{split} {count:,}" for split, count in counts.items()) for counts in (rows, published)
    )
    comparison = ", as published" if rows == published else f"; published: {expected}"
    print(f"rows: {found}{comparison if published else ''}")


def token_file(prefix: Path, types: int):
    return dataset_builder(prefix, np.uint16 if types <= 1 << 16 else np.int32)


def dataset_builder(prefix: Path, dtype: type):
    logging.disable(logging.INFO)  # fairseq logs missing optional packages on import
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder  # takes seconds to import

    logging.disable(logging.NOTSET)
    return MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)


def write_split(folder: Path, split: str, rows: Iterable[tuple], types: int, total: int | None = None) -> int:
    """Writes the files of a split and returns its number of rows.

    Rows are (values of each input ..., label). Values are indices into a dictionary of ``types`` symbols, or
    UNKNOWN. The label is the index of a class, or -1 if it is unknown.
    """
    builders, labels = [], []
    for *inputs, label in progress(rows, f"writing {split}", "rows", total=total):
        if not builders:
            prefixes = [folder / f"{split}.input{i}" for i in range(len(inputs))]
            builders = [(token_file(prefix, types + SPECIALS), f"{prefix}.idx") for prefix in prefixes]
        for (builder, _), values in zip(builders, inputs, strict=True):
            builder.add_item(torch.from_numpy(np.asarray(values, dtype=np.int64) + SPECIALS))
        labels.append(label)
    for builder, index in builders:
        builder.finalize(index)
    write_labels(folder, split, labels)
    return len(labels)


def write_labels(folder: Path, split: str, labels: list[int]) -> None:
    np.save(folder / f"{split}.label.npy", np.array(labels, dtype=np.int64))


def write_dictionary(folder: Path, types: Sequence[str], labels: Sequence[str], rows: dict, **metadata):
    write_lines(folder / "dict.txt", (f"{name} 1" for name in types))
    write_metadata(folder, labels, rows, **metadata)


def write_metadata(folder: Path, labels: Sequence[str], rows: dict, **metadata) -> None:
    """Writes the metadata that ``data.layout.read_metadata`` reads; call it after all splits are written."""
    inputs = len(list(folder.glob(f"{next(iter(rows))}.input?.idx")))
    content = {"inputs": inputs, "labels": list(labels), "rows": rows, **metadata}
    (folder / METADATA).write_text(json.dumps(content, indent=1) + "\n")
