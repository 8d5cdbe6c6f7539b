"""WikiText-103 (Merity et al. 2016), for fairseq's language_modeling or masked_lm.

The corpus wikitext103 is the word-level version with rare words as <unk>, and wikitext103_bpe is the raw
version in GPT-2 BPE. wikitext_mini is a small corpus: the test set is used for training, and the two halves
of the validation set are used for validation and test. wikitext_mini_chars and wikitext_mini_bpe are the same
in characters and in GPT-2 BPE. Results on these three are not comparable with results on WikiText-103.
"""

import re
from pathlib import Path

from data_prep import fetch
from data_prep.binarize import SPLITS, binarize, concatenate, split_files
from data_prep.corpus import Corpus
from data_prep.gpt2_bpe import BytePairCorpus
from data_prep.parallel import map_files
from data_prep.validation import check_text
from fairseq_lrpe.data.layout import vocabulary_size
from fairseq_lrpe.data.line_codec import Characters
from fairseq_lrpe.utils.files import read_lines, write_lines


class WikiText103(Corpus):
    """WikiText-103 at word level; ``check`` returns {split: file}, or None if OUT/text exists."""

    metavar = "FILE_OR_FOLDER"
    used = SPLITS

    @property
    def accepts(self):
        return f"a copy of {self.published}, or a folder with its files (default: download it)"

    def source(self, args):
        return self.published if args.source and args.source.is_file() else super().source(args)

    def check(self, args):
        if (args.out / "text").is_dir():
            return None
        expected = f"--from takes {self.published} or a folder with its files (see --help)"
        if args.source and not args.source.exists():
            raise ValueError(f"{args.source} is missing: {expected}")
        if args.source and args.source.is_dir():
            files = self.files_in(args.source)
            for path in files.values():
                check_text(path, expected)
            return files
        fetch.unpack(fetch.verified(self.archive(args), self.published, self.facts), args.out / "unpacked")
        return self.files_in(args.out / "unpacked")

    def files_in(self, folder):
        """Returns {split: file} of ``folder``, or of its subfolder with the name that the archive uses."""
        inside = folder / self.facts["folder"]
        base = inside if inside.is_dir() else folder
        return {split: base / self.facts["file"].format(split) for split in self.used}

    def write_text(self, args, inputs, folder):
        for split, path in inputs.items():
            concatenate([path], folder / f"{split}.txt")

    def prepare(self, args, source, inputs):
        binarize(inputs, args.out, source, workers=args.workers)

    def vocabulary(self, data):
        size, expected = vocabulary_size(data / "dict.txt"), self.facts["vocabulary"]
        if size == expected:
            return f"{size:,} types, as in the papers"
        return f"{size:,} types; the full training set has {expected:,}, as in the papers"


class RawBytePairs(BytePairCorpus, WikiText103):
    """WikiText-103's raw text in GPT-2 BPE."""


class Mini(WikiText103):
    """A small corpus from WikiText-103's validation and test sets; its units are words."""

    used = ("valid", "test")
    units = "words"

    @property
    def accepts(self):
        return (
            f"{super().accepts}; or a folder with train.txt, valid.txt and test.txt, which are used unchanged"
        )

    def check(self, args):
        texts = split_files(args.source) if args.source else {}
        if not any(path.is_file() for path in texts.values()):
            if files := super().check(args):
                find_middle(files["valid"])
            return files
        for path in texts.values():
            check_text(path, "expected train.txt, valid.txt and test.txt")
        return texts

    def write_text(self, args, inputs, folder):
        if "train" in inputs:
            return super().write_text(args, inputs, folder)
        lines, middle = find_middle(inputs["valid"])
        for split, part in (("valid", lines[:middle]), ("test", lines[middle:])):
            write_lines(folder / f"{split}.txt", part)
        concatenate([inputs["test"]], folder / "train.txt")

    def prepare(self, args, source, inputs):
        split = inputs and "train" in inputs
        texts = inputs if split else split_files(self.text(args, source, inputs))
        binarize(self.encoded(args, texts), args.out, source, "--thresholdsrc", 5, workers=args.workers)

    def encoded(self, args, texts):
        """Returns {split: file with the units of the text separated by spaces}; here, ``texts`` itself."""
        return texts

    def vocabulary(self, data):
        size = vocabulary_size(data / "dict.txt")
        return f"{size:,} types, {self.units} that occur five times or more in the training text"


class MiniCharacters(Mini):
    """The small corpus from WikiText-103 in characters."""

    units = "characters"

    def encoded(self, args, texts):
        return map_files(Characters().encode, texts, args.out, "characters", args.workers)


class MiniBytePairs(BytePairCorpus, Mini):
    """The small corpus from WikiText-103 in GPT-2 BPE."""


def find_middle(path: Path) -> tuple[list[str], int]:
    """Returns the lines of a file, and the index of the first article title in the second half.

    A title is a line `` = Name = `` between blank lines; headings inside articles have more equals signs.

    Raises:
        ValueError: If there is no title.
    """
    lines = [*read_lines(path)]
    blank = [not line.strip() for line in lines]
    for i in range(len(lines) // 2, len(lines) - 1):
        if blank[i - 1] and blank[i + 1] and re.fullmatch(r" = [^=].* = ", lines[i]):
            return lines, i
    raise ValueError(f"the second half of {path} has no article title: expected a file of WikiText")
