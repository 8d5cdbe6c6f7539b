"""Finds the text files of each split and binarizes them with fairseq-preprocess."""

import codecs
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fairseq_lrpe.utils.subprocesses import run_command

SPLITS = ("train", "valid", "test")


def split_files(folder: Path) -> dict[str, Path]:
    """Returns {split: path} of the files train.txt, valid.txt and test.txt in a folder."""
    return {split: folder / f"{split}.txt" for split in SPLITS}


def splits_in(folder: Path, ending: str) -> list[str]:
    """Returns the splits, such as "train" or "valid1", for which a folder has a file with this ending."""
    names = sorted(path.name.removesuffix(ending) for path in folder.glob(f"*{ending}"))
    return [name for split in SPLITS for name in names if name.rstrip("1") == split]


def concatenate(files: Iterable[Path], target: Path) -> None:
    """Concatenates non-empty text files, without byte order marks, and with a newline at the end of each."""
    with target.open("wb") as out:
        for file in files:
            with file.open("rb") as text:
                if text.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                    text.seek(0)
                shutil.copyfileobj(text, out)
                text.seek(-1, os.SEEK_END)
                if text.read() != b"\n":
                    out.write(b"\n")


def preprocess(texts: dict, folder: Path, log: Path, *flags, languages=None, workers: int = 1) -> None:
    """Runs fairseq-preprocess.

    Args:
        texts: {split: path of the text, or list of paths}; with ``languages``, the paths are without the
            suffix of the language.
        folder: Output folder.
        log: Log file, to which the output of fairseq-preprocess is appended.
        flags: Further flags of fairseq-preprocess.
        languages: (source, target) languages of translation data, or None for monolingual text.
        workers: Number of worker processes.
    """
    kind = [f"--{side}-lang={x}" for side, x in zip(("source", "target"), languages or (), strict=False)]
    print(f"Binarizing {folder.name.removesuffix('.part')}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        prefixes = []
        for split, paths in texts.items():
            paths = paths if isinstance(paths, list) else [paths]
            joined = ",".join(str(without_comma(path, Path(scratch))) for path in paths)
            prefixes += [f"--{split}pref", joined]
        command = [*(kind or ["--only-source"]), *prefixes, "--destdir", folder, "--workers", workers, *flags]
        run_command(["python", "-m", "data_prep.preprocess", *map(str, command)], log)


def without_comma(path: Path, scratch: Path) -> Path:
    """Returns a path without a comma, which separates files for fairseq, through a link in ``scratch``."""
    if "," not in str(path):
        return path
    link = scratch / str(len(os.listdir(scratch)))
    link.symlink_to(path.parent.absolute())
    return link / path.name
