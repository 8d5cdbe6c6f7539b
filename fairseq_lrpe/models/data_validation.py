"""Validation of data folders, to find data that would silently give wrong results."""

import os
from math import prod
from pathlib import Path

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.data.layout import PREPARE_AGAIN
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import check_regular


def check_data(args, splits: list[str]) -> None:
    """Raises a UserError if a data folder is missing, or if the files of ``splits`` do not match.

    All folders must have the same dictionary. Folders after the first contain only shards of the training
    set. If all files of a text are missing, fairseq reports this. The data of other plugins' tasks are not
    checked.
    """
    if args.task not in FAMILIES:  # a task of another plugin
        return
    folders = list(map(Path, args.data.split(os.pathsep)))
    layout.check_shards(folders)
    for folder in folders:
        if not folder.is_dir():
            command = prepare_command(folder)
            remedy = f"`{command}` prepares it" if command else "pass one that fairseq-preprocess wrote"
            raise UserError(f"the data folder {str(folder)!r} does not exist: {remedy}")
        layout.check_dictionaries(folder)
        for split in splits:
            files = layout.files_of_split(folder, split)
            for prefix in sorted({path.with_suffix("") for path in files if path.suffix in layout.SUFFIXES}):
                layout.check_binary(prefix)
            if args.task in ("classification", "image_classification"):
                check_labeled(folder, split, images=args.task == "image_classification")
        splits = splits[:1]


def check_labeled(folder: Path, split: str, images: bool = False) -> None:
    """Raises a UserError if the inputs and labels of a split do not match.

    Args:
        folder: data folder.
        split: name of the split.
        images: whether the inputs must be image files; otherwise, they must be tokens.
    """
    metadata = layout.read_metadata(folder)
    if bool(metadata.get("images")) != images:
        content, task = ("tokens", "classification") if images else ("image files", "image_classification")
        raise UserError(f"{folder} contains {content}: pass --task {task}")
    check_regular(folder / f"{split}.label.npy")
    labels = np.load(folder / f"{split}.label.npy", mmap_mode="r")
    for number in range(metadata["inputs"]):
        prefix = folder / f"{split}.input{number}"
        index = MMapIndexedDataset.Index(f"{prefix}.idx")
        if len(index) != len(labels):
            raise UserError(f"{prefix} has {len(index):,} rows, but {len(labels):,} labels: {PREPARE_AGAIN}")
        if "shape" in metadata and (index.sizes != prod(metadata["shape"])).any():
            raise UserError(f"{prefix} has rows without {prod(metadata['shape']):,} pixels: {PREPARE_AGAIN}")
