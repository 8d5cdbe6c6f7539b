"""fairseq-preprocess of a corpus's texts, and what to tell about its result."""

import os
import shutil
from pathlib import Path

import yaml

from data_prep import door
from fairseq_lrpe.commands import run

SPLITS = ("train", "valid", "test")
SOURCES = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text())
DATA = Path(__file__).parents[1] / "data"


def binarise(texts, out, source, *flags, workers=1, name="bin"):
    """``out``/``name`` of the files ``texts`` {split: path} of ``source``; it appears whole or not at all."""
    part = out / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    prefixes = [x for split, path in texts.items() for x in (f"--{split}pref", path)]
    print(f"Preparing {out / name}", flush=True)
    run(
        "preprocess",
        ["--only-source", *prefixes, "--destdir", part, "--workers", workers, *flags],
        out / "preprocess.log",
        show=r"(?<=\[None\] ).*",
    )
    door.leave_note(part, source)
    os.replace(part, out / name)


def vocabulary_size(folder, dictionary="dict.txt"):
    """What fairseq counts when it loads folder/dict.txt: its lines, and <s>, <pad>, </s> and <unk>."""
    return (folder / dictionary).read_bytes().count(b"\n") + 4


def finished(out):
    """Whether an earlier run prepared ``out`` to the end."""
    return (out / "bin").is_dir()


def shards(out):
    """The folders of a prepared training set in order: bin, and bin1, bin2 … if it is in parts."""
    numbers = sorted(int(path.name[3:]) for path in out.glob("bin*") if path.name[3:].isdigit())
    return [out / "bin", *(out / f"bin{i}" for i in numbers)]


def report(out, vocabulary, task="language_modeling"):
    """The last lines: how the vocabulary turned out, in the words ``vocabulary``, and how to train."""
    data = os.pathsep.join(map(str, shards(out)))
    print(f"vocabulary: {vocabulary}")
    print(f"ready: fairseq-train {data} --task {task} --user-dir fairseq_lrpe ...")


def report_masked_lm(out):
    """``report`` of byte pairs for fairseq's masked_lm, which adds a <mask> to the dictionary."""
    size, expected = vocabulary_size(out / "bin") + 1, SOURCES["gpt2_bpe"]["vocabulary_with_mask"]
    same = "as in the papers" if size == expected else f"not the papers' {expected:,}"
    report(out, f"{size:,} types with the <mask> of fairseq's masked_lm, {same}", "masked_lm")
