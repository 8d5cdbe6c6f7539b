"""Functions that find, concatenate and binarize the text files of splits."""

import codecs
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fairseq_lrpe.utils.subprocesses import run_command

SPLITS = ("train", "valid", "test")


def split_files(folder: Path) -> dict[str, Path]:
    return {split: folder / f"{split}.txt" for split in SPLITS}


def splits_in(folder: Path, ending: str) -> list[str]:
    """Returns the splits, such as "train" or "valid1", for which a folder has a file SPLIT + ``ending``."""
    names = sorted(path.name.removesuffix(ending) for path in folder.glob(f"*{ending}"))
    splits = []
    for split in SPLITS:
        for name in names:
            if name.rstrip("1") == split:
                splits.append(name)
    return splits


def concatenate(files: Iterable[Path], target: Path) -> None:
    """Writes the contents of non-empty UTF-8 files to ``target``.

    Byte order marks are omitted, and each content ends with a newline.
    """
    with target.open("wb") as out:
        for file in files:
            with file.open("rb") as text:
                if text.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                    text.seek(0)
                shutil.copyfileobj(text, out)
                text.seek(-1, os.SEEK_END)
                if text.read() != b"\n":
                    out.write(b"\n")


def preprocess(texts: dict, folder: Path, log: Path, *flags, workers: int = 1) -> None:
    """Binarizes texts with fairseq-preprocess.

    Args:
        texts: {split: path of the text, or list of paths}. Paths of parallel text omit the language's suffix.
        folder: Output folder.
        log: Log file, to which the output of fairseq-preprocess is appended.
        flags: Further flags of fairseq-preprocess: --only-source, or --source-lang and --target-lang.
        workers: Number of worker processes.
    """
    print(f"Binarizing {folder.name.removesuffix('.part')}", flush=True)
    command = ["--destdir", folder, "--workers", workers, *flags]
    for split, paths in texts.items():
        paths = paths if isinstance(paths, list) else [paths]
        command += [f"--{split}pref", ",".join(map(str, paths))]
    run_command(["python", "-m", "data_prep.preprocess", *map(str, command)], log)
