"""WikiText-103 (Merity et al. 2016), and small corpora that are made from it."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from data_prep.binarize import SPLITS, split_files
from data_prep.corpus import UNPACKED, compared
from data_prep.fetch import fetch
from data_prep.hub import ON_HUB, find_tables, texts_to_lines
from data_prep.text_corpus import BytePairCorpus, CharacterCorpus, TextCorpus, copy_texts
from fairseq_lrpe.data.layout import read_object
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, read_lines, write_lines

COUNTS = "counts.json"  # numbers of tokens or lines of the published files from which OUT/text was made


class WikiText103(TextCorpus):
    """WikiText-103 (Merity et al. 2016) at word level, with rare words as <unk>."""

    @property
    def accepts(self):
        files = f"a copy of {self.facts['archive']}, or a folder with its files or the hub's Parquet files"
        return f"{files} (default: download it)"

    def files(self, args, splits=SPLITS):
        if args.source and args.source.is_file():
            fetch(args.out / self.facts["archive"], self.facts, args.source)
        if tables := find_tables(args.source):
            return self.files_of_hub(tables, args.out / UNPACKED, splits)
        folder = self.archive(args)
        inside = folder / self.facts["folder"]
        base = inside if inside.is_dir() else folder
        return {split: base / self.facts["file"].format(split) for split in splits}

    def files_of_hub(self, tables, folder, splits):
        folder.mkdir(exist_ok=True)
        files = {split: folder / self.facts["file"].format(split) for split in splits}
        texts_to_lines(tables, {ON_HUB[split]: path for split, path in files.items()})
        return files

    def write_text(self, args, folder):
        files = self.files(args)
        copy_texts(files, folder)
        self.write_counts(files, folder)

    def write_counts(self, files: dict[str, Path], folder: Path) -> None:
        """Writes the number of tokens in the file of each split, or of lines if only these are published."""
        count = count_tokens if "tokens" in self.facts else count_lines
        counts = {}
        for split, file in files.items():
            counts[split] = count(read_lines(file))
        (folder / COUNTS).write_text(json.dumps(counts) + "\n")

    def report(self, args):
        file = args.out / "text" / COUNTS
        if file.is_file():
            unit = "tokens" if "tokens" in self.facts else "lines"
            counts = read_object(file, lambda found: set(found) <= set(SPLITS))
            published = {split: self.facts[unit][split] for split in counts}
            print(f"{unit} of {self.facts['folder']}: {compared(counts, published)}")
        super().report(args)


class RawBytePairs(BytePairCorpus, WikiText103):
    """The raw version of WikiText-103 (Merity et al. 2016), without <unk>, in GPT-2 BPE."""


class Mini(WikiText103):
    """A small corpus from WikiText-103; words that occur less than five times in the training text are <unk>.

    The test set is used for training, and the two halves of the validation set are used for validation and
    test. Results are not comparable with results on WikiText-103.
    """

    @property
    def accepts(self):
        return f"{super().accepts}; or a folder with train.txt, valid.txt and test.txt"

    def write_text(self, args, folder):
        texts = split_files(args.source) if args.source else {}
        if any(map(file_exists, texts.values())):
            return copy_texts(texts, folder)
        files = self.files(args, ("valid", "test"))
        copy_texts({"train": files["test"], "valid": files["valid"]}, folder)
        self.write_counts(files, folder)
        lines = [*read_lines(folder / "valid.txt")]
        middle = find_middle(lines)
        write_lines(folder / "valid.txt", lines[:middle])
        write_lines(folder / "test.txt", lines[middle:])

    def flags(self, args):
        return ["--thresholdsrc", 5]


class MiniCharacters(CharacterCorpus, Mini):
    """A small corpus from WikiText-103 in characters that occur five times or more (see wikitext_mini)."""


class MiniBytePairs(BytePairCorpus, Mini):
    """A small corpus from WikiText-103 in GPT-2 BPE (see wikitext_mini)."""


def count_tokens(lines: Iterable[str]) -> int:
    """Returns the number of words of all lines, plus one token for the end of each line."""
    tokens = 0
    for line in lines:
        tokens += len(line.split()) + 1
    return tokens


def count_lines(lines: Iterable[str]) -> int:
    return sum(1 for _ in lines)


def find_middle(lines: list[str]) -> int:
    """Returns the index of the first article title in the second half of the lines of WikiText.

    A title is a line `` = Name = `` between blank lines; headings inside articles have more equals signs.
    """
    blank = [not line.strip() for line in lines]
    for i in range(len(lines) // 2, len(lines) - 1):
        if blank[i - 1] and blank[i + 1] and re.fullmatch(r" = [^=].* = ", lines[i]):
            return i
    title = "article title (a line ` = Title = ` between blank lines)"
    remedy = "pass the original files of WikiText-103"
    raise UserError(f"the second half of the validation set has no {title}: {remedy}")
