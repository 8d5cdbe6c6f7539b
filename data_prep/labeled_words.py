"""The base class of word-level corpora of labeled texts or pairs of texts.

OUT/text contains the raw texts and their Penn Treebank tokens, and OUT/bin contains the word indices. The
vocabulary consists of the words that occur more than three times in the training set. With --vectors, it is
restricted to words with a vector, and OUT/bin/vectors.txt contains the vectors. All other words are <unk>.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from itertools import islice, repeat
from pathlib import Path

from data_prep.binarize import splits_in
from data_prep.labeled import TRAIN_ROWS, UNKNOWN, Labeled
from data_prep.parallel import map_lines, progress
from fairseq_lrpe.data import word_vectors
from fairseq_lrpe.data.penn_treebank import tokenize_penn
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import read_lines, write_lines

MIN_COUNT = 4  # minimum number of occurrences in the training set


class LabeledWords(Labeled):
    options = {
        **TRAIN_ROWS,
        "--vectors": {
            "type": path_arg,
            "metavar": "FILE",
            "help": "file of word vectors in GloVe's format, which restricts the vocabulary to words with a "
            "vector",
        },
    }

    def check(self, args):
        if args.vectors:
            word_vectors.dimension(args.vectors)

    def rows(self, args: Namespace) -> dict[str, Iterable[tuple]]:
        """Returns {split: rows}; a row is (text, label), or (text, second text, label) of a corpus of pairs.

        The label is None if it is unknown.
        """
        raise NotImplementedError

    def write_text(self, args, folder):
        for split, rows in self.rows(args).items():
            *texts, labels = zip(*islice(rows, args.train_rows if split == "train" else None), strict=True)
            for number, column in enumerate(texts):
                lines = [" ".join(text.split()) for text in column]
                write_lines(folder / f"{split}.input{number}.txt", lines)
            if labels[0] is not None:
                write_lines(folder / f"{split}.label", labels)

    def prepare(self, args, folder):
        text = self.text(args)
        self.labels = label_names(text)
        for path in sorted(text.glob("*.input?.txt")):
            map_lines(tokenize_penn, path, path.with_suffix(""), args.workers)
        self.types = vocabulary(text)
        if args.vectors:
            self.types = with_vectors(self.types, args.vectors, folder / "vectors.txt")
        super().prepare(args, folder)

    def splits(self, args):
        text = args.out / "text"
        numbers = {word: number for number, word in enumerate(self.types)}

        def encoded(path):
            for line in read_lines(path):
                yield [numbers.get(word, UNKNOWN) for word in line.split()]

        for split in splits_in(text, ".input0.txt"):
            file = text / f"{split}.label"
            label = map(self.labels.index, read_lines(file)) if file.is_file() else repeat(-1)
            columns = map(encoded, sorted(text.glob(f"{split}.input?")))
            yield split, zip(*columns, label, strict=False), None


def label_names(text: Path) -> list[str]:
    """Returns the sorted labels of the training set in the folder ``text``.

    Raises:
        UserError: if the training set has fewer than two labels, or another split has a further label.
    """
    names = sorted(set(read_lines(text / "train.label")))
    if len(names) < 2:
        raise UserError(f"the training set has only the label {names[0]!r}: expected at least two labels")
    for file in text.glob("*.label"):
        if unknown := set(read_lines(file)) - set(names):
            known = f"the training set has only {', '.join(names)}"
            raise UserError(f"the {file.stem} set has the label {min(unknown)!r}, but {known}: correct it")
    return names


def vocabulary(text: Path) -> list[str]:
    """Returns the words that occur at least MIN_COUNT times in the training set, by decreasing frequency."""
    counts = Counter()
    for path in sorted(text.glob("train.input?")):
        for line in progress(read_lines(path), f"words of {path.name}", "lines"):
            counts.update(line.split())
    words = [word for word, count in counts.most_common() if count >= MIN_COUNT]
    if not words:
        raise UserError(f"no word occurs {MIN_COUNT} times in the training set: use more text")
    return words


def with_vectors(words: list[str], vectors: Path, target: Path) -> list[str]:
    known = set()
    with target.open("wb") as out:
        for word, _, line in word_vectors.read(vectors, words):
            known.add(word)
            out.write(line.rstrip() + b"\n")
    return [word for word in words if word in known]
