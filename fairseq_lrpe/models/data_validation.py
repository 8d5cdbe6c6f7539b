"""Validation of data folders, which finds damaged files and data that would silently give wrong results."""

import os
from math import prod
from pathlib import Path

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl

from fairseq_lrpe.data import layout
from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.tasks import FAMILIES
from fairseq_lrpe.utils.errors import UserError

PREPARE_AGAIN = "remove its folder and prepare it again"


def check_data(args, splits: list[str]) -> None:
    """Raises a UserError if a data folder does not exist, or if files of ``splits`` are damaged.

    All folders must have the same dictionary. Folders after the first contain only shards of the training
    set. Sources of question generators must not exceed --max-source-positions. If all files of a text are
    missing, fairseq reports it. The data of other plugins' tasks are not checked.
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
        for split in splits:
            if args.task in ("classification", "image_classification"):
                check_labeled(folder, split, images=args.task == "image_classification")
            files = [*folder.glob(f"{split}.*"), *folder.glob(f"input*/{split}.*")]
            for prefix in sorted({path.with_suffix("") for path in files if path.suffix in layout.SUFFIXES}):
                check_binary(prefix)
        if args.task == "question_generation" and not args.skip_invalid_size_inputs_valid_test:
            from fairseq_lrpe.models.question_generator import QuestionGeneratorConfig  # imports this module

            # fairseq adds the defaults of a model's flags after this check.
            limit = getattr(args, "max_source_positions", QuestionGeneratorConfig.max_source_positions)
            check_source_length(folder, limit)
        splits = splits[:1]


def check_source_length(folder: Path, limit: int) -> None:
    """Raises a UserError if a source has more than ``limit`` tokens; fairseq would skip it in training."""
    indices = [MMapIndexedDataset.Index(str(path)) for path in folder.glob("*.source.idx")]
    longest = max((index.sizes.max() for index in indices), default=0)
    if longest > limit:
        raise UserError(
            f"{folder} has a source of {longest} tokens, more than --max-source-positions {limit}: pass "
            f"--max-source-positions {longest}, or prepare the data with --longest {limit}"
        )


def check_labeled(folder: Path, split: str, images: bool = False) -> None:
    """Raises a UserError if a split is damaged, or has tokens although ``images`` is True, or vice versa."""
    about = layout.read_metadata(folder)
    if bool(about.get("images")) != images:
        content, task = ("tokens", "classification") if images else ("image files", "image_classification")
        raise UserError(f"{folder} contains {content}: pass --task {task}")
    path = folder / f"{split}.label.npy"
    try:
        labels = np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged ({error}): {PREPARE_AGAIN}") from None
    if not labels.size:
        raise UserError(f"{path} has no labels: {PREPARE_AGAIN}")
    if labels.min() < 0 or labels.max() >= len(about["labels"]):
        wrong = f"labels {labels.min()} to {labels.max()} instead of 0 to {len(about['labels']) - 1}"
        raise UserError(f"{path} has {wrong}, the labels of {layout.METADATA}: {PREPARE_AGAIN}")
    for number in range(about["inputs"]):
        prefix = folder / f"{split}.input{number}"
        sizes = check_binary(prefix)
        if sizes is None:
            raise UserError(f"{prefix} is not in fairseq's mmap format: {PREPARE_AGAIN}")
        if len(sizes) != len(labels):
            raise UserError(f"{prefix} has {len(sizes):,} rows, but {len(labels):,} labels: {PREPARE_AGAIN}")
        wrong = sizes != prod(about["shape"]) if "shape" in about else np.zeros(len(sizes), bool)
        if wrong.any():
            raise UserError(
                f"{prefix}: row {wrong.argmax():,} has {sizes[wrong.argmax()]:,} pixels instead of "
                f"{prod(about['shape']):,}: {PREPARE_AGAIN}"
            )


def check_binary(prefix: Path) -> np.ndarray | None:
    """Returns the sizes of the rows of a binarized text, or None for fairseq's older formats.

    Raises:
        UserError: if the text or its index is missing or damaged, if they do not match, or the text is empty.
    """
    binary, index = (prefix.with_name(prefix.name + end) for end in layout.SUFFIXES)
    again = f"{PREPARE_AGAIN}, or run fairseq-preprocess on the text again"
    kind = infer_dataset_impl(str(prefix))
    if kind is None:
        missing = [f"{path} is missing" for path in (binary, index) if not path.is_file()]
        raise UserError(f"{', '.join(missing) or f'{index} is not an index of fairseq'}: {again}")
    if kind != "mmap":
        return None
    try:
        about = MMapIndexedDataset.Index(str(index))
    except Exception as error:  # errors of struct, numpy and fairseq have different types
        raise UserError(f"{index} is damaged ({error}): {again}") from None
    sizes = about.sizes.copy()  # the original is a view into a file that is closed with the index
    expected = int(sizes.sum(dtype=np.int64)) * np.dtype(about.dtype).itemsize
    if not expected or binary.stat().st_size != expected:
        raise UserError(
            f"{binary} has {binary.stat().st_size:,} bytes instead of the {expected:,} that its index "
            f"describes, so it is empty, truncated, or from another text: {again}"
        )
    return sizes
