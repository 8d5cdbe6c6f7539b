"""A corpus's texts, and fairseq-preprocess of them."""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from data_prep.door import noted_folder
from data_prep.progress import AFTER, written
from fairseq_lrpe.commands import run_command

SPLITS = ("train", "valid", "test")
TOLD = re.compile(r"(?<=\[None\] ).*|\[[a-z]{2}\] .*")
"""What is shown of fairseq-preprocess's lines: sizes; of two languages also which one's."""


def texts_in(folder: Path) -> dict[str, Path]:
    """Returns {split: its text} of a folder with train.txt, valid.txt and test.txt."""
    return {split: folder / f"{split}.txt" for split in SPLITS}


def join(files: Iterable[Path], target: Path) -> None:
    """Writes texts that are not empty one after the other to ``target``, each to the end of a line."""
    with target.open("wb") as out:
        for file in files:
            size = file.stat().st_size
            bar = {"desc": file.name, "disable": None, "delay": AFTER, "leave": False}
            with file.open("rb") as text:
                with tqdm.wrapattr(text, "read", size, **bar) as counted:
                    shutil.copyfileobj(counted, out)
                text.seek(-1, os.SEEK_END)
                if text.read() != b"\n":
                    out.write(b"\n")


def preprocess(texts: dict, folder: Path, log: Path, *flags, languages=None, workers: int = 1) -> None:
    """Runs fairseq-preprocess of ``texts`` {split: path} into ``folder``.

    Of pairs of ``languages``, paths are without their ends .en and so on.
    """
    kind = [f"--{side}-lang={x}" for side, x in zip(("source", "target"), languages or (), strict=False)]
    prefixes = [x for split, path in texts.items() for x in (f"--{split}pref", path)]
    command = [*(kind or ["--only-source"]), *prefixes, "--destdir", folder, "--workers", workers, *flags]

    def show(line):
        if told := TOLD.search(line):
            tqdm.write(f"    {told[0]}")
            sys.stdout.flush()

    with written(f"binarising {folder.name.removesuffix('.part')}", folder):
        run_command(["fairseq-preprocess", *map(str, command)], log, show)


def binarise(texts: dict, out: Path, source: str, *flags, workers: int = 1, name: str = "bin") -> None:
    """Writes ``out``/``name`` of the files ``texts`` {split: path}; it appears whole or not at all."""
    with noted_folder(out / name, source) as part:
        preprocess(texts, part, out / "preprocess.log", *flags, workers=workers)
