"""Text for a first language model, and its way to fairseq's binaries."""

import os
import pydoc_data.topics
import re
import shutil
from pathlib import Path

import sentencepiece

from fairseq_lrpe.commands import run

SPLITS = ("train", "valid", "test")


def write_python_docs(folder):
    """The English prose that ships inside Python, a paragraph a line: folder/{train,valid,test}.txt.

    Of every topic the first 80% of the characters are for training, the next and the last 10% for
    validation and test; a paragraph that stands in several topics is kept once.
    """
    lines, seen = {split: [] for split in SPLITS}, set()
    for _, topic in sorted(pydoc_data.topics.topics.items()):
        paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topic)]
        paragraphs = [p for p in dict.fromkeys(paragraphs) if p and p not in seen]
        seen.update(paragraphs)
        total, done = sum(map(len, paragraphs)), 0
        for paragraph in paragraphs:
            lines["train" if done < 0.8 * total else "valid" if done < 0.9 * total else "test"].append(
                paragraph
            )
            done += len(paragraph)
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        (folder / f"{split}.txt").write_text("\n".join(lines[split]) + "\n", encoding="utf-8")


def check_text(folder):
    """ValueError unless ``folder`` holds a non-empty UTF-8 train.txt, valid.txt and test.txt."""
    for split in SPLITS:
        path = Path(folder) / f"{split}.txt"
        if not path.is_file():
            raise ValueError(f"{path} is missing: the data folder needs train.txt, valid.txt and test.txt")
        try:
            with path.open(encoding="utf-8") as file:
                if not sum(bool(line.strip()) for line in file):  # all: bad bytes may come late
                    raise ValueError(f"{path} is empty: each of train.txt, valid.txt and test.txt needs text")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error}): convert it first") from None


def binarise(text, destination, vocab_size):
    """SentencePiece of at most ``vocab_size`` pieces learned on train.txt, then ``fairseq-preprocess``.

    ``destination`` appears whole, with spm.model inside, or not at all.
    """
    work = destination.with_name(destination.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text / "train.txt"),
        model_prefix=str(work / "spm"),
        vocab_size=vocab_size,
        model_type="bpe",
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(work / "spm.model"))
    for split in SPLITS:
        with (
            (text / f"{split}.txt").open(encoding="utf-8") as source,
            (work / f"{split}.spm").open("w") as target,
        ):
            target.writelines(" ".join(pieces.encode(line.strip(), out_type=str)) + "\n" for line in source)
    prefixes = [x for split in SPLITS for x in (f"--{split}pref", work / f"{split}.spm")]
    run(
        "preprocess",
        ["--only-source", *prefixes, "--destdir", work, "--workers", 1],
        work / "preprocess.log",
    )
    os.replace(work, destination)
