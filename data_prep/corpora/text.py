"""Running text from Wikipedia and from books."""

import hashlib
import os
import re
import shutil
from pathlib import Path

from data_prep import gpt2_bpe, text_corpus
from data_prep.binarize import SPLITS, concatenate, split_files
from data_prep.corpus import recorded_folder
from data_prep.text_corpus import BytePairCorpus, SentencePieceCorpus, sentencepiece_option
from data_prep.validation import check_text
from fairseq_lrpe.data import layout
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists, visible_entries

EVERY = 5000  # one article of so many is used for validation, about 1,280 in total, and one for test
SHARD = "bin-shard{}-8"  # names of the published folders, from 0


class Wikipedia(SentencePieceCorpus):
    """English Wikipedia in SentencePiece units, for fairseq's language_modeling.

    The SentencePiece model is learned on at most two million lines of train.txt and saved as
    OUT/bin/spm.model. Without --from, the text is Wikimedia's extract of November 2023, which is loaded with
    the optional Hugging Face package datasets: a line is a paragraph or a heading, and a blank line ends an
    article. One of every 5,000 articles is used for validation and one for test.
    """

    accepts = f"{SentencePieceCorpus.accepts} (default: Wikimedia's extract)"
    options = sentencepiece_option(32_000)

    def write_text(self, args, folder):
        if args.source:
            return super().write_text(args, folder)
        text_corpus.write_dataset(self.facts, folder, split_of_article, paragraphs)


def split_of_article(number: int, articles: int) -> str:
    return text_corpus.nth_split(number, EVERY)


def paragraphs(article: str) -> str:
    """Returns the non-blank lines of an article with normalized spaces, followed by a blank line."""
    text = ""
    for line in article.split("\n"):
        words = line.split()
        if words:
            text += " ".join(words) + "\n"
    return text + "\n"


class Books(BytePairCorpus):
    """BookCorpus or other books in GPT-2 BPE, for fairseq's language_modeling.

    If file names in the folder --from end in train.txt, valid.txt or test.txt, they determine the splits, and
    other files are ignored. Otherwise, whole books are assigned to the splits: 98% for training, 1% for
    validation and 1% for test. Without --from, BookCorpus (Zhu et al. 2015) is loaded with the optional
    Hugging Face package datasets. It has neither splits nor book boundaries, and is split after 98% and 99%
    of its lines.
    """

    accepts = "a folder with books as text files *.txt (default: BookCorpus, with the package datasets)"
    task = "language_modeling"

    def write_text(self, args, folder):
        if args.source is None:
            return text_corpus.write_dataset(self.facts, folder, split_of_line)
        for split, books in find_books(args.source).items():
            for book in books:
                check_text(book)
            concatenate(books, folder / f"{split}.txt")


def split_of_line(number: int, lines: int) -> str:
    share = lines // 100
    if number < lines - 2 * share:
        return "train"
    return "valid" if number < lines - share else "test"


def find_books(folder: Path) -> dict[str, list[Path]]:
    """Returns {split: files *.txt} of a folder.

    The end of a file's name selects its split. If no name ends in a split, hashes of the names do.

    Raises:
        UserError: if a split would be empty.
    """
    books = [path for path in visible_entries(folder) if path.suffix == ".txt"]
    parts = {split: [] for split in SPLITS}
    for book in books:
        if end := re.search(rf"(^|[._-])({'|'.join(SPLITS)})\.txt$", book.name):
            parts[end[2]].append(book)
    if not any(parts.values()):
        # In the order of the names' hashes, similar books are not next to each other.
        ordered = sorted(books, key=lambda book: hashlib.sha256(book.name.encode()).hexdigest())
        share = max(1, len(books) // 100)
        parts["valid"] = sorted(ordered[:share])
        parts["test"] = sorted(ordered[share : 2 * share])
        parts["train"] = sorted(ordered[2 * share :])
    for split in SPLITS:
        if not parts[split]:
            remedy = f"add {split}.txt, or pass at least three files without splits in their names"
            raise UserError(f"{folder} has {len(books)} *.txt files, but none for {split}: {remedy}")
    return parts


class WikiBook(BytePairCorpus):
    """Wikipedia and BookCorpus in GPT-2 BPE, for fairseq's masked_lm.

    Without --from, the binarized data published by Wettig et al. (2022) is downloaded: 22 GB in 16 shards,
    which contain the text twice. fairseq reads one shard per epoch. --from accepts a copy of this data, or a
    folder with train.txt, valid.txt and optionally test.txt, in which a blank line ends a document.
    """

    accepts = (
        "a folder with train.txt, valid.txt and optionally test.txt, or a copy of the published folders "
        "or of one of them (default: download them)"
    )

    def check(self, args):
        if args.bpe_types and not (args.source and not self.find_shards(args.source)):
            raise UserError("--bpe-types requires a folder with text: binarized data has all types")

    def write_text(self, args, folder):
        texts = split_files(args.source)
        if not texts["test"].exists():
            del texts["test"]
        text_corpus.copy_texts(texts, folder)

    def prepare(self, args, folder):
        shards = self.find_shards(args.source or self.download(args.out / "published"))
        if not shards:
            return super().prepare(args, folder)
        for shard in shards:
            for name in layout.text(["train"]):
                if not file_exists(shard / name):
                    raise UserError(f"{shard / name} is missing: copy the published folder completely")
            gpt2_bpe.published(shard / "dict.txt", shard / "dict.txt")
        gpt2_bpe.provide(args.out / "gpt2_bpe", args.bpe)
        first, *others = shards
        for i, shard in enumerate(others, 1):  # the first shard last: it marks completion
            if not (args.out / f"bin{i}").is_dir():
                with recorded_folder(args.out / f"bin{i}", self.record(args)) as part:
                    copy_shard(shard, args.out / "gpt2_bpe" / "dict.txt", part)
        copy_shard(first, args.out / "gpt2_bpe" / "dict.txt", folder)

    def download(self, folder: Path) -> Path:
        from huggingface_hub import snapshot_download

        path = snapshot_download(
            self.facts["dataset"],
            repo_type="dataset",
            revision=self.facts["revision"],
            local_dir=folder,
            allow_patterns="bin-shard*-8/*",
        )
        return Path(path)

    def find_shards(self, folder: Path) -> list[Path]:
        """Returns the folders with binarized data: ``folder`` itself, all shards by number, or [].

        Raises:
            UserError: if only some of the shards exist.
        """
        if file_exists(folder / "dict.txt"):
            return [folder]
        shards = []
        missing = []
        for number in range(self.facts["shards"]):
            shard = folder / SHARD.format(number)
            (shards if shard.is_dir() else missing).append(shard)
        if missing and shards:
            wrong = f"{missing[0]} is missing, one of {self.facts['shards']} published folders"
            raise UserError(f"{wrong}: copy all of them, or pass one of them")
        return shards


def copy_shard(folder: Path, dictionary: Path, part: Path) -> None:
    shutil.copyfile(dictionary, part / "dict.txt")
    for ending in layout.SUFFIXES:
        for path in folder.glob(f"*{ending}"):
            try:
                os.link(path.resolve(), part / path.name)
            except OSError:
                shutil.copyfile(path, part / path.name)
