"""What corpora of texts, or of pairs of texts, with labels have in common where their words are the types.

OUT/text has the texts as they are and in words by the Penn Treebank's rules, and OUT/bin their numbers. The
vocabulary is the words that the training set has more than three times and, with --vectors, that have a
vector; all others are <unk>. OUT/bin/vectors.txt has these vectors.
"""

import shutil
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable
from itertools import islice, repeat
from pathlib import Path

from tqdm import tqdm

from data_prep.binarise import SPLITS
from data_prep.classified import SPECIALS, UNKNOWN, write_about, write_split
from data_prep.door import noted_folder
from data_prep.each_line import each_line
from data_prep.labelled import Labelled, TrainRows
from data_prep.penn_words import penn_words
from data_prep.progress import AFTER
from fairseq_lrpe import word_vectors
from fairseq_lrpe.layouts import vocabulary_size
from fairseq_lrpe.programs import a_path

ENOUGH = 4  # times in the training set


class LabelledWords(TrainRows, Labelled):
    """A corpus of labelled texts; ``found``: what ``rows`` returns, None if that is still to be fetched."""

    def add_options(self, parser: ArgumentParser) -> None:
        super().add_options(parser)
        told = (
            "vectors of words in GloVe's format: of the words that the training set has more than three "
            "times those with a vector are kept (default: all of them, and embeddings start at random)"
        )
        parser.add_argument("--vectors", type=a_path, metavar="FILE", help=told)

    def source(self, args):
        vectors = f", with vectors of {args.vectors.resolve()}" if args.vectors else ""
        return super().source(args) + vectors

    def check_vectors(self, args: Namespace) -> None:
        """Raises ValueError unless the file of --vectors begins as one."""
        if args.vectors:
            word_vectors.width(args.vectors)

    def check(self, args):
        super().check(args)
        self.check_vectors(args)
        if args.source is None or (args.out / "text").is_dir():
            return None
        print(f"Checking {args.source}", flush=True)
        return self.rows(args)

    def rows(self, args: Namespace) -> dict[str, Iterable[tuple]]:
        """Returns {split: its rows}, (text, perhaps a second text, label, which is None if not known)."""
        raise NotImplementedError

    def write_text(self, args, found, folder):
        """Writes folder/SPLIT.input0.txt and so on, and folder/SPLIT.label, a row per line."""
        for split, rows in (found or self.rows(args)).items():
            *texts, labels = zip(*islice(rows, args.train_rows if split == "train" else None), strict=True)
            for i, column in enumerate(texts):
                write_lines(folder / f"{split}.input{i}.txt", (" ".join(text.split()) for text in column))
            if labels[0] is not None:
                write_lines(folder / f"{split}.label", labels)

    def prepare(self, args, source, found):
        text = self.text(args, source, found)
        try:
            labels = label_names(text)
            for path in sorted(text.glob("*.input?.txt")):
                if not (words := path.with_suffix("")).exists():
                    each_line(penn_words, path, words, args.workers)
            with noted_folder(args.out / "bin", source) as part:
                words = vocabulary(text)
                if args.vectors:
                    words = with_vectors(words, args.vectors, part / "vectors.txt")
                write_bin(text, part, words, labels)
        except ValueError:  # the note in OUT/text has these options, and would refuse others
            shutil.rmtree(text)
            raise

    def vocabulary(self, data):
        size = vocabulary_size(data / "dict.txt")
        what = f"{size:,} types, words that the training set has {ENOUGH} times or more"
        if (data / "vectors.txt").is_file():
            return f"{what} and that have a vector, of {word_vectors.width(data / 'vectors.txt')} numbers"
        return f"{what}; without --vectors their embeddings start at random"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a text, a line each."""
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in lines)


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text without their ends."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]


def label_names(text: Path) -> list[str]:
    """Returns the labels of the training set, sorted.

    ValueError if there are fewer than two, or if another set has one that is not there.
    """
    names = sorted(set(read_lines(text / "train.label")))
    if len(names) < 2:
        raise ValueError(f"the training set has the label {names[0]!r} alone: two labels or more are needed")
    for split in splits_in(text):
        given = text / f"{split}.label"
        if given.is_file() and (unknown := set(read_lines(given)) - set(names)):
            raise ValueError(
                f"the {split} set has the label {min(unknown)!r}, the training set only {', '.join(names)}"
            )
    return names


def vocabulary(text: Path) -> list[str]:
    """Returns the words that the training set has often enough, the most frequent first."""
    counts = Counter()
    for path in sorted(text.glob("train.input?")):
        with path.open(encoding="utf-8", newline="\n") as lines:
            shown = {"desc": f"words of {path.name}", "unit": "lines", "disable": None, "leave": False}
            for line in tqdm(lines, delay=AFTER, **shown):
                counts.update(line.split())
    words = [word for word, count in counts.most_common() if count >= ENOUGH]
    if not words:
        raise ValueError(f"no word is {ENOUGH} times in the training set: more text is needed")
    return words


def with_vectors(words: list[str], vectors: Path, target: Path) -> list[str]:
    """Returns those of the words that have a vector in a file, and writes their lines to ``target``."""
    found = set()
    with target.open("wb") as out:
        for word, _, line in word_vectors.read(vectors, words):
            found.add(word)
            out.write(line.rstrip() + b"\n")
    return [word for word in words if word in found]


def write_bin(text: Path, folder: Path, words: list[str], labels: list[str]) -> None:
    """Writes the folder of the task classification, of the texts in words and the labels in ``text``."""
    numbers, rows = {word: i for i, word in enumerate(words, SPECIALS)}, {}

    def encoded(path):
        with path.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield [numbers.get(word, UNKNOWN) for word in line.split()]

    for split in splits_in(text):
        given = text / f"{split}.label"
        label = map(labels.index, read_lines(given)) if given.is_file() else repeat(-1)
        columns = zip(*map(encoded, sorted(text.glob(f"{split}.input?"))), label, strict=False)
        rows[split] = write_split(folder, split, columns, len(words) + SPECIALS)
    write_about(folder, words, labels, rows)


def splits_in(text: Path) -> list[str]:
    """Returns the splits of a text in their order: train, valid, perhaps valid1, test, perhaps test1."""
    found = {path.name.split(".")[0] for path in text.glob("*.input0.txt")}
    return [split for kind in SPLITS for split in sorted(found) if split.rstrip("1") == kind]
