"""fairseq-preprocess of three texts, and what to tell about its result."""

import os
import shutil
from pathlib import Path

import yaml

from data_prep import door
from fairseq_lrpe.experiments.commands import run

SPLITS = ("train", "valid", "test")
SOURCES = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text())
DATA = Path(__file__).parents[1] / "data"


def binarise(texts, out, source, *flags, workers=1):
    """``out``/bin of the files ``texts`` {split: path} of ``source``; it appears whole or not at all."""
    part = out / "bin.part"
    shutil.rmtree(part, ignore_errors=True)
    prefixes = [x for split in SPLITS for x in (f"--{split}pref", texts[split])]
    print(f"Preparing {out / 'bin'}", flush=True)
    run(
        "preprocess",
        ["--only-source", *prefixes, "--destdir", part, "--workers", workers, *flags],
        out / "preprocess.log",
        show=r"(?<=\[None\] ).*",
    )
    door.leave_note(part, source)
    os.replace(part, out / "bin")


def vocabulary_size(folder):
    """What fairseq counts when it loads folder/dict.txt: its lines, and <s>, <pad>, </s> and <unk>."""
    return (folder / "dict.txt").read_bytes().count(b"\n") + 4


def finished(out):
    """Whether an earlier run prepared ``out`` to the end."""
    return (out / "bin").is_dir()


def report(out, vocabulary):
    """The last lines: how the vocabulary turned out, in the words ``vocabulary``, and how to train."""
    print(f"vocabulary: {vocabulary}")
    print(f"ready: fairseq-train {out / 'bin'} --task language_modeling --user-dir fairseq_lrpe ...")
