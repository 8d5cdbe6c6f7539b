"""Validation of data folders: missing files, and damaged files that would give wrong numbers."""

import os
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl

from fairseq_lrpe.data import layout, word_pieces
from fairseq_lrpe.data.corpora import prepare_command

REMEDIES = {
    **dict.fromkeys(
        ("language_modeling", "memory_lm", "masked_lm"),
        "run fairseq-preprocess --only-source --trainpref ... --validpref ... on the text first",
    ),
    "sentence_prediction": "bash data_prep/prepare.sh glue creates such folders of GLUE's tasks",
    "translation": "run fairseq-preprocess -s {source} -t {target} on the text first, or pass its languages",
    "question_generation": "bash data_prep/prepare.sh squad creates such a folder, cmrc2018 a Chinese one",
}
"""{task: how to create its data folder}"""
PREPARE_AGAIN = "prepare it again"
PREPROCESS_AGAIN = "run fairseq-preprocess on the text again"


def check_data(args, splits: list[str]) -> None:
    """Raises a ValueError if data folders lack files of ``splits``, or if these files are damaged.

    Folders after the first are shards of the training set.
    """
    if args.task in ("classification", "image_classification"):
        for split in splits:
            check_labeled(Path(args.data), split, images=args.task == "image_classification")
    if args.task not in REMEDIES:
        return
    languages = {"source": getattr(args, "source_lang", None), "target": getattr(args, "target_lang", None)}
    files = {
        "sentence_prediction": layout.sentences,
        "translation": partial(layout.translation, **languages),
        "question_generation": layout.questions,
    }.get(args.task, layout.text)
    if args.task == "translation" and not all(languages.values()):
        return  # fairseq infers them
    ends = (*layout.SUFFIXES, ".txt")
    for folder in map(Path, args.data.split(os.pathsep)):
        if not folder.is_dir():
            command = prepare_command(folder)
            remedy = f"`{command}` prepares it" if command else "pass one that fairseq-preprocess wrote"
            raise ValueError(f"the data folder {str(folder)!r} does not exist: {remedy}")
        names = [name for name in files(splits) if name.endswith(ends)]
        if missing := [name for name in names if not (folder / name).is_file()]:
            remedy = REMEDIES[args.task].format(**languages)
            raise ValueError(
                f"the data folder {str(folder)!r} is not binarized, {', '.join(missing)} missing: {remedy}"
            )
        for name in names:
            if name.endswith(".idx"):
                check_binary((folder / name).with_suffix(""))
        if args.task == "question_generation":
            word_pieces.load(folder)
            if not args.skip_invalid_size_inputs_valid_test:
                check_source_length(folder, args.max_source_positions)
        splits, ends = splits[:1], layout.SUFFIXES


def check_source_length(folder: Path, limit: int) -> None:
    """Raises a ValueError if a source is longer than ``limit`` tokens: fairseq would skip it in training."""
    indices = [MMapIndexedDataset.Index(str(path)) for path in folder.glob("*.source.idx")]
    longest = max(index.sizes.max() for index in indices)
    if longest > limit:
        command = prepare_command(folder) or ""
        option = "" if "--longest" in command else f" --longest {limit}"
        how = f"by `{command}{option}`" if command else f"with{option}"
        raise ValueError(
            f"{folder} has a source of {longest} tokens, more than --max-source-positions {limit}: remove "
            f"{folder.parent} and prepare it {how}, or pass --max-source-positions {longest}"
        )


def check_labeled(folder: Path, split: str, images: bool = False) -> None:
    """Raises a ValueError if a split of inputs with labels is incomplete, damaged or of another task.

    Args:
        folder: the data folder.
        split: name of the split.
        images: whether the task reads image files (image_classification) or tokens (classification).
    """
    about = layout.read_metadata(folder)
    if about.get("images") and not images:
        raise ValueError(f"{folder} contains image files: pass --task image_classification")
    if images and not about.get("images"):
        raise ValueError(
            f"{folder} contains no image files: bash data_prep/prepare.sh imagenet creates such a folder, "
            "and cifar10 a small one"
        )
    names = layout.labelled([split]) if images else layout.classified([split], about["inputs"])
    if missing := [name for name in names if not (folder / name).is_file()]:
        splits = ", ".join(about["rows"])
        raise ValueError(f"{folder} lacks {', '.join(missing)}: {PREPARE_AGAIN}; its splits are {splits}")
    try:
        labels = np.load(folder / f"{split}.label.npy", mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{folder / split}.label.npy is damaged ({error}): {PREPARE_AGAIN}") from None
    if not len(labels) or labels.min() < 0 or labels.max() >= len(about["labels"]):
        known = f"the {len(about['labels'])} of {layout.METADATA}"
        raise ValueError(f"{folder / split}.label.npy has rows without a label, or labels other than {known}")
    size = prod(about["shape"]) if "shape" in about else None
    for number in range(about["inputs"]):
        prefix = folder / f"{split}.input{number}"
        check_binary(prefix)
        index = MMapIndexedDataset.Index(f"{prefix}.idx")
        sizes = index.sizes  # a view into a file that is closed with the index
        if len(sizes) != len(labels):
            raise ValueError(f"{prefix} has {len(sizes):,} rows and {len(labels):,} labels: {PREPARE_AGAIN}")
        if size and (sizes != size).any():
            row = int((sizes != size).argmax())
            raise ValueError(
                f"{prefix}: row {row:,} has {sizes[row]:,} pixels instead of {size:,}: {PREPARE_AGAIN}"
            )


def check_binary(prefix: Path) -> None:
    """Raises a ValueError if a binarized text is empty, damaged, or does not belong to its index."""
    binary, index = (prefix.with_name(prefix.name + end) for end in layout.SUFFIXES)
    kind = infer_dataset_impl(str(prefix))
    if kind is None:
        raise ValueError(f"{index} is not an index of fairseq's binarized text: {PREPROCESS_AGAIN}")
    if kind != "mmap":
        return  # fairseq's older formats
    try:
        about = MMapIndexedDataset.Index(str(index))
    except Exception as error:  # struct, numpy and a dict of types raise different ones
        raise ValueError(f"{index} is damaged ({error}): {PREPROCESS_AGAIN}") from None
    tokens = int(about.sizes.sum(dtype=np.int64))
    size = tokens * np.dtype(about.dtype).itemsize
    if not tokens:
        raise ValueError(f"{binary} contains no tokens: {PREPROCESS_AGAIN}")
    if binary.stat().st_size != size:
        raise ValueError(
            f"{binary} has {binary.stat().st_size:,} bytes instead of the {size:,} of its index: it is "
            f"truncated, or of another text: {PREPROCESS_AGAIN}"
        )
