"""Answers data folders that fairseq could not read with one sentence, before anything is built or written."""

import os
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl

from fairseq_lrpe import layouts, word_pieces

LOOKED_AT = 1 << 22
"""Tokens of each file that are compared with its dictionary: all of a large one would take minutes."""


def check_data(args, splits: list[str]) -> None:
    """Refuses, by ValueError, data folders that lack what these splits need, or hold what cannot be read.

    Further folders are shards of the training set.
    """
    if args.task in ("language_modeling", "memory_lm", "masked_lm"):
        files = layouts.text
        remedy = "run fairseq-preprocess --only-source --trainpref ... --validpref ... on the text first"
    elif args.task == "sentence_prediction":
        files = layouts.sentences
        remedy = "bash data_prep/prepare.sh glue makes such folders of GLUE's tasks"
    elif args.task == "translation" and args.source_lang and args.target_lang:
        source, target = args.source_lang, args.target_lang
        files = partial(layouts.translation, source=source, target=target)
        remedy = f"run fairseq-preprocess -s {source} -t {target} on the text first, or give its languages"
    elif args.task == "question_generation":
        files = layouts.questions
        remedy = "bash data_prep/prepare.sh squad makes such a folder, and cmrc2018 a Chinese one"
    elif args.task == "classification":
        for split in splits:
            check_tokens(Path(args.data), split)
        return
    elif args.task == "image_classification":
        for split in splits:
            check_pictures(Path(args.data), split)
        return
    else:
        return
    ends = (*layouts.ENDS, ".txt")
    for folder in args.data.split(os.pathsep):
        asked = f"the data folder {folder!r}"
        if not Path(folder).is_dir():
            raise ValueError(f"{asked} does not exist: give one that fairseq-preprocess wrote")
        wanted = [name for name in files(splits) if name.endswith(ends)]
        missing = [name for name in wanted if not (Path(folder) / name).is_file()]
        if missing:
            raise ValueError(f"{asked} is not binarised, {', '.join(missing)} missing: {remedy}")
        dictionaries = {name: check_dictionary(Path(folder) / name) for name in wanted if "dict." in name}
        for name in wanted:
            if name.endswith(".idx"):
                check_binary((Path(folder) / name).with_suffix(""), dictionaries.get(_dictionary_of(name)))
        if args.task == "question_generation":
            word_pieces.load(Path(folder))
        splits, ends = splits[:1], layouts.ENDS


AGAIN = "prepare it again"


def check_tokens(folder: Path, split: str) -> None:
    """Refuses, by ValueError, a split of tokens with labels that classification cannot read."""
    about = layouts.about(folder)
    if about.get("images"):
        raise ValueError(f"{folder} holds pictures as files: give --task image_classification")
    check_there(folder, layouts.classified([split], about["inputs"]), about)
    check_labelled(folder, split, about, check_dictionary(folder / "dict.txt"))


def check_pictures(folder: Path, split: str) -> None:
    """Refuses, by ValueError, a split of pictures with labels that image_classification cannot read."""
    about = layouts.about(folder)
    if not about.get("images"):
        raise ValueError(
            f"{folder} holds no pictures as files: bash data_prep/prepare.sh imagenet makes such a folder, "
            "and cifar10 a small one"
        )
    check_there(folder, layouts.labelled([split]), about)
    check_labelled(folder, split, about, None)


def check_there(folder: Path, names: list[str], about: dict) -> None:
    """Refuses, by ValueError, a folder that lacks one of these files."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        has = ", ".join(about["rows"])
        raise ValueError(f"{folder} lacks {', '.join(missing)}: {AGAIN}; its splits are {has}")


def check_labelled(folder: Path, split: str, about: dict, types: int | None) -> None:
    """Refuses, by ValueError, a split of inputs that is damaged, or without some labels."""
    try:
        labels = np.load(folder / f"{split}.label.npy", mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{folder / split}.label.npy is cut off or damaged ({error}): {AGAIN}") from None
    if not len(labels) or labels.min() < 0 or labels.max() >= len(about["labels"]):
        known = f"the {len(about['labels'])} of {layouts.ABOUT}"
        raise ValueError(f"{folder / split}.label.npy has rows without a label, or others than {known}")
    size = prod(about["shape"]) if "shape" in about else None
    for number in range(about["inputs"]):
        prefix = folder / f"{split}.input{number}"
        check_binary(prefix, types)
        index = MMapIndexedDataset.Index(f"{prefix}.idx")
        sizes = index.sizes  # a view into a file that is open as long as the index is there
        if len(sizes) != len(labels):
            raise ValueError(f"{prefix} has {len(sizes):,} rows and {len(labels):,} labels: {AGAIN}")
        if size and (sizes != size).any():
            row = int((sizes != size).argmax())
            raise ValueError(f"{prefix}: row {row:,} has {sizes[row]:,} pixels instead of {size:,}: {AGAIN}")


def _dictionary_of(name):
    # train.idx -> dict.txt, train.en-de.de.idx -> dict.de.txt
    path = Path(name)
    language = path.with_suffix("").suffix
    return str(path.with_name(f"dict{language}.txt"))


def check_dictionary(path: Path) -> int:
    """Returns how many types a dictionary has; ValueError where fairseq cannot read it."""
    try:
        types = len(Dictionary.load(str(path)))
    except Exception as error:  # fairseq raises Exception itself
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} is no dictionary, UTF-8 with a type and its count in each line ({reason}): give the one "
            "that fairseq-preprocess wrote"
        ) from None
    if types == Dictionary().nspecial:
        raise ValueError(f"{path} has no types: give the dictionary that fairseq-preprocess wrote")
    return types


def check_binary(prefix: Path, types: int | None) -> None:
    """Refuses, by ValueError, binarised text that is cut off, foreign, empty, or of another dictionary.

    The dictionary, where it is known, has this many ``types``.
    """
    binary, index = (prefix.with_name(prefix.name + end) for end in layouts.ENDS)
    again = "binarise the text again with fairseq-preprocess"
    kind = infer_dataset_impl(str(prefix))
    if kind is None:
        raise ValueError(f"{index} is no index of fairseq's binarised text: {again}")
    if kind != "mmap":
        return  # fairseq's older forms
    try:
        about = MMapIndexedDataset.Index(str(index))
    except Exception as error:  # of struct, of numpy, of a dictionary
        raise ValueError(f"{index} is cut off or damaged ({error}): {again}") from None
    tokens = int(about.sizes.sum(dtype=np.int64))
    size = tokens * np.dtype(about.dtype).itemsize
    if not tokens:
        raise ValueError(f"{binary} holds no tokens: {again}")
    if binary.stat().st_size != size:
        raise ValueError(
            f"{binary} has {binary.stat().st_size:,} bytes and its index says {size:,}: it is cut off, or of "
            f"another text; {again}"
        )
    highest = np.fromfile(binary, about.dtype, min(tokens, LOOKED_AT)).max()
    if types is not None and highest >= types:
        raise ValueError(
            f"{binary} has a token of the number {highest:,} and its dictionary {types:,} types: give the "
            f"dict.txt with which it was binarised, or {again}"
        )
