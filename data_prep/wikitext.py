"""WikiText-103 (Merity et al. 2016) -> fairseq's binaries.

wikitext103 is the word-level version, rare words as <unk>; wikitext103_bpe the raw one, every word of it, in
GPT-2's byte pairs. wikitext_mini is a small corpus: the test set is for training, the two halves of the
validation set are for validation and test; wikitext_mini_chars is the same by characters. Numbers on it
say nothing about WikiText-103's own.
"""

import re
import shutil
from pathlib import Path

from data_prep import fetch
from data_prep.binarise import SPLITS, binarise, join, texts_in
from data_prep.corpus import Corpus
from data_prep.door import check_text
from data_prep.each_line import each_line
from data_prep.gpt2_bpe import InBytePairs
from fairseq_lrpe.layouts import vocabulary_size


class WikiText103(Corpus):
    """The published tokens."""

    metavar = "FILE_OR_FOLDER"
    facts = fetch.SOURCES["wikitext103"]
    published = facts["archive"]
    splits = SPLITS  # that are used

    @property
    def accepts(self):
        return f"{self.published} from elsewhere, or a folder with its files (default: download it)"

    def source(self, args):
        return self.published if args.source and args.source.is_file() else super().source(args)

    def check(self, args):
        wanted = f"--from takes {self.published} or a folder with its files (see --help)"
        if args.source is None:
            return
        if not args.source.exists():
            raise ValueError(f"{args.source} is missing: {wanted}")
        if args.source.is_file():
            fetch.verified(args.source, self.published, self.facts)
        else:
            for path in self.files_in(args.source).values():
                check_text(path, wanted)

    def files_in(self, folder):
        """Returns {split: its file} in ``folder``, or in the folder that the archive has them in."""
        inside = folder / self.facts["folder"]
        place = inside if inside.is_dir() else folder
        return {split: place / self.facts["file"].format(split) for split in self.splits}

    def files(self, args):
        """Returns {split: its file}, fetched and unpacked in OUT as far as --from gives no folder."""
        source = args.source or fetch.fetch(args.out / self.published, self.facts)
        if source.is_file():
            fetch.unpack(source, args.out / "unpacked")
            source = args.out / "unpacked"
        return self.files_in(source)

    def write_text(self, args, found, folder):
        for split, path in (found or self.files(args)).items():
            join([path], folder / f"{split}.txt")

    def prepare(self, args, source, found):
        binarise(self.files(args), args.out, source, workers=args.workers)

    def vocabulary(self, data):
        size, expected = vocabulary_size(data / "dict.txt"), self.facts["vocabulary"]
        if size == expected:
            return f"{size:,} types; as in the papers"
        return f"{size:,} types; the papers' {expected:,} is of the whole training set"


class RawBytePairs(InBytePairs, WikiText103):
    """The published raw text in byte pairs."""

    facts = fetch.SOURCES["wikitext103_raw"]
    published = facts["archive"]


class Mini(WikiText103):
    """The small corpus out of the published tokens; ``found``: the texts of a folder that is cut already."""

    splits = ("valid", "test")

    @property
    def accepts(self):
        return f"{super().accepts}; or a folder with train.txt, valid.txt and test.txt cut already"

    def check(self, args):
        texts = texts_in(args.source) if args.source else {}
        if not any(path.is_file() for path in texts.values()):
            super().check(args)
            if args.source and args.source.is_dir():
                halves(self.files_in(args.source)["valid"])
            return None
        for path in texts.values():
            check_text(path, "all of train.txt, valid.txt and test.txt are needed")
        return texts

    def write_text(self, args, found, folder):
        if found:
            return super().write_text(args, found, folder)
        files = self.files(args)
        for split, lines in zip(("valid", "test"), halves(files["valid"]), strict=True):
            (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8", newline="\n")
        shutil.copyfile(files["test"], folder / "train.txt")

    def prepare(self, args, source, found):
        texts = found or texts_in(self.text(args, source, found))
        binarise(self.encoded(args, texts), args.out, source, "--thresholdsrc", 5, workers=args.workers)

    units = "words"

    def encoded(self, args, texts):
        """Returns {split: a file of the units that are counted, between blanks} of {split: its text}."""
        return texts

    def vocabulary(self, data):
        size = vocabulary_size(data / "dict.txt")
        return f"{size:,} types, {self.units} that the training text has five times or more"


class MiniCharacters(Mini):
    """The small corpus in characters."""

    units = "characters"

    def encoded(self, args, texts):
        characters = {split: args.out / f"{split}.characters" for split in texts}
        for split, path in characters.items():
            if not path.exists():
                each_line(in_characters, texts[split], path, args.workers)
        return characters


def in_characters(line: str) -> str:
    """Returns the characters of a line's words between blanks, ▁ for what was one; <unk> stays whole."""
    return " ▁ ".join(word if word == "<unk>" else " ".join(word) for word in line.split())


class MiniBytePairs(InBytePairs, Mini):
    """The small corpus in byte pairs."""


def halves(path: Path) -> tuple[list[str], list[str]]:
    """Returns the lines of a text in two, the second from the first title in its half on.

    A title is `` = Name = `` between blank lines; a heading inside an article has more equals signs.
    """
    with path.open(encoding="utf-8", newline="\n") as file:
        lines = file.readlines()
    blank = [not line.strip() for line in lines]
    for i in range(len(lines) // 2, len(lines) - 1):
        if blank[i - 1] and blank[i + 1] and re.fullmatch(r" = [^=].* = \n", lines[i]):
            return lines[:i], lines[i:]
    raise ValueError(f"the second half of {path} has no article's title: it is not WikiText's")
