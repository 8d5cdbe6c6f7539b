"""The files in a folder of binarized data, which data_prep writes and fairseq's tasks read."""

import json
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np

from fairseq_lrpe.data.corpora import prepare_command
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import PREPARE, check_regular, file_exists, read_file

SUFFIXES = (".bin", ".idx")
PREPARE_AGAIN = "remove its folder and prepare it again"
METADATA = "about.json"  # of data for ``classification`` and ``image_classification``
CODES = "codes"  # BPE merges of translation data, in the folder that also contains the data's folder
PREPARATION = "preparation.json"  # tokenization settings of data for translation and ``question_generation``


def binarized(names: Iterable[str]) -> list[str]:
    files = []
    for name in names:
        files += [name + suffix for suffix in SUFFIXES]
    return files


def text(splits: Iterable[str]) -> list[str]:
    """Returns the names of the files of monolingual text, written by ``fairseq-preprocess --only-source``."""
    return ["dict.txt", *binarized(splits)]


def translation(splits: Iterable[str], source: str, target: str) -> list[str]:
    """Returns the names of the files of translation data, written by ``fairseq-preprocess``."""
    names = []
    for split in splits:
        names.append(f"{split}.{source}-{target}.{source}")
        names.append(f"{split}.{source}-{target}.{target}")
    return [f"dict.{source}.txt", f"dict.{target}.txt", *binarized(names)]


def sentences(splits: Iterable[str]) -> list[str]:
    """Returns the names of the files of a GLUE task for sentence_prediction, without those of labels."""
    return ["rows.json", "input0/dict.txt", *binarized(f"input0/{split}" for split in splits)]


def questions(splits: Iterable[str]) -> list[str]:
    """Returns the names of the files of sources and questions for the task ``question_generation``."""
    return ["vocab.txt", PREPARATION, *translation(splits, "source", "question")]


def raw_text(data: Path, splits: Iterable[str], columns: Iterable[str]) -> list[Path]:
    """Returns the text files of a prepared corpus before tokenization, which evaluations read."""
    paths = []
    for split in splits:
        for column in columns:
            paths.append(data.parent / "text" / f"{split}.{column}")
    return paths


def classified(splits: Iterable[str], inputs: int) -> list[str]:
    """Returns the names of the files of rows of ``inputs`` labeled texts, for the task ``classification``."""
    return ["dict.txt", *labeled(splits, inputs)]


def labeled(splits: Iterable[str], inputs: int = 1) -> list[str]:
    """Returns the names of the files of labeled inputs without a dictionary, such as images."""
    names = []
    labels = []
    for split in splits:
        labels.append(f"{split}.label.npy")
        for number in range(inputs):
            names.append(f"{split}.input{number}")
    return [METADATA, *binarized(names), *labels]


def check_file(path: Path) -> None:
    """Raises a UserError for a damaged .npy file, or an index (.idx) that does not match its text."""
    check_regular(path)
    if path.suffix == ".idx":
        check_binary(path.with_suffix(""))
    elif path.suffix == ".npy":
        try:
            np.load(path, mmap_mode="r")
        except (ValueError, EOFError):
            raise UserError(f"{path} is damaged: {PREPARE_AGAIN}") from None


def check_binary(prefix: Path) -> None:
    """Raises a UserError if a file of a binarized text is missing, or if a text does not match its index."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl

    for name in binarized([prefix.name]):
        check_regular(prefix.with_name(name))
    kind = infer_dataset_impl(str(prefix))
    try:
        index = MMapIndexedDataset.Index(f"{prefix}.idx") if kind == "mmap" else None
    except (ValueError, struct.error):  # the index is truncated
        kind = None
    if kind is None:
        raise UserError(f"{prefix}.bin or {prefix.name}.idx is missing or damaged: {PREPARE_AGAIN}")
    if index is not None:
        size = Path(f"{prefix}.bin").stat().st_size
        expected = int(index.sizes.sum(dtype=np.int64)) * np.dtype(index.dtype).itemsize
        if size != expected:
            raise UserError(
                f"{prefix}.bin has {size:,} bytes instead of the {expected:,} that its index describes: "
                f"{PREPARE_AGAIN}, or run fairseq-preprocess on the text again"
            )


def files_of_split(folder: Path, split: str) -> list[Path]:
    """Returns the existing files of a split in a data folder and in its subfolders for GLUE."""
    paths = []
    for part in ("", "input*/", "label/"):
        paths += folder.glob(f"{part}{split}.*")
    return paths


def check_dictionaries(folder: Path) -> None:
    """Raises a UserError if a dictionary in a data folder is not a regular file."""
    for path in (*folder.glob("dict*.txt"), *folder.glob("input*/dict.txt")):
        check_regular(path)


def read_object(path: Path, is_valid: Callable[[dict], bool], remedy: str = PREPARE_AGAIN) -> dict:
    """Returns the object in a JSON file of a data folder.

    Raises:
        UserError: if the file is missing or damaged, or if ``is_valid`` returns False or fails for the
            object.
    """
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        content = json.loads(read_file(path))
        if is_valid(content):
            return content
    raise UserError(f"{path} is missing, damaged or for another task: {remedy}")


def read_metadata(folder: Path) -> dict:
    """Returns the metadata of a folder of inputs with labels.

    Its keys are "inputs" (number per row), "labels" (names), "rows" ({split: number of rows}), and for images
    "shape" and "pixels" ({"mean", "std"}), or "images" if they are stored as image files.
    """

    def is_valid(note):
        return note["inputs"] in (1, 2) and len(note["labels"]) > 1 and isinstance(note["rows"], dict)

    command = prepare_command(folder) or PREPARE
    return read_object(folder / METADATA, is_valid, f"`{command}` prepares such folders")


def shards(folder: Path) -> list[Path]:
    """Returns the existing shards [folder, folder1, ...] of a data folder; fairseq reads one per epoch."""
    existing = [folder]
    for number in count(1):
        shard = folder.with_name(f"{folder.name}{number}")
        if not shard.is_dir():
            break
        existing.append(shard)
    check_shards(existing)
    return existing


def check_shards(folders: list[Path]) -> None:
    """Raises a UserError if the dictionaries of shards differ; fairseq reads only that of the first."""
    first, *others = folders
    for folder in others:
        for path in first.glob("dict*.txt"):
            other = folder / path.name
            if file_exists(other) and _symbols(other) != _symbols(path):
                wrong = f"{other} differs from {path}, so {folder.name} is not a shard of {first.name}"
                raise UserError(f"{wrong}: rename one of the folders, or prepare both in the same way")


def _symbols(dictionary):
    check_regular(dictionary)
    return [line.rpartition(b" ")[0] for line in dictionary.read_bytes().splitlines()]


def vocabulary_size(dictionary: Path) -> int:
    """Returns the size of fairseq's Dictionary for a dict.txt: its lines plus <s>, <pad>, </s> and <unk>."""
    check_regular(dictionary)
    return dictionary.read_bytes().count(b"\n") + 4
