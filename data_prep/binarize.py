"""Finds the text files of each split and binarizes them with fairseq-preprocess."""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from data_prep.progress import progress, show_written
from data_prep.validation import folder_with_source
from fairseq_lrpe.utils.subprocesses import run_command

SPLITS = ("train", "valid", "test")
SUMMARY = re.compile(r"(?<=\[None\] ).*|\[[a-z]{2}\] .*")
"""Pattern of the log lines of fairseq-preprocess that are printed: the sizes of dictionaries and splits."""


def split_files(folder: Path) -> dict[str, Path]:
    """Returns {split: path} of the files train.txt, valid.txt and test.txt in a folder."""
    return {split: folder / f"{split}.txt" for split in SPLITS}


def splits_in(folder: Path, ending: str) -> list[str]:
    """Returns the splits, such as "train" or "valid1", for which a folder has a file with this ending."""
    names = sorted(path.name.removesuffix(ending) for path in folder.glob(f"*{ending}"))
    return [name for split in SPLITS for name in names if name.rstrip("1") == split]


def concatenate(files: Iterable[Path], target: Path) -> None:
    """Concatenates non-empty text files, and adds a newline where a file does not end with one."""
    with target.open("wb") as out:
        for file in files:
            with file.open("rb") as text:
                with progress(None, file.name, total=file.stat().st_size) as bar:
                    shutil.copyfileobj(CallbackIOWrapper(bar.update, text, "read"), out)
                text.seek(-1, os.SEEK_END)
                if text.read() != b"\n":
                    out.write(b"\n")


def preprocess(texts: dict, folder: Path, log: Path, *flags, languages=None, workers: int = 1) -> None:
    """Runs fairseq-preprocess.

    Args:
        texts: {split: path of the text}; with ``languages``, paths without the suffix of the language.
        folder: Output folder.
        log: Log file, to which the output of fairseq-preprocess is appended.
        flags: Further flags of fairseq-preprocess.
        languages: (source, target) languages of translation data, or None for monolingual text.
        workers: Number of worker processes.
    """
    kind = [f"--{side}-lang={x}" for side, x in zip(("source", "target"), languages or (), strict=False)]
    prefixes = [x for split, path in texts.items() for x in (f"--{split}pref", path)]
    command = [*(kind or ["--only-source"]), *prefixes, "--destdir", folder, "--workers", workers, *flags]

    def show(line):
        if match := SUMMARY.search(line):
            tqdm.write(f"    {match[0]}")
            sys.stdout.flush()

    with show_written(f"binarizing {folder.name.removesuffix('.part')}", folder):
        run_command(["python", "-m", "data_prep.preprocess", *map(str, command)], log, show)


def binarize(texts: dict, out: Path, source: str, *flags, workers: int = 1, name: str = "bin") -> None:
    """Binarizes ``texts`` {split: path} into ``out``/``name``, and records their source there."""
    with folder_with_source(out / name, source) as part:
        preprocess(texts, part, out / "preprocess.log", *flags, workers=workers)
