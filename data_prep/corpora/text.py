"""The user's own text, Python's documentation, or Wikipedia in SentencePiece units."""

import pydoc_data.topics
import re
from typing import ClassVar

from data_prep.binarize import SPLITS
from data_prep.text_corpus import SentencePieceCorpus, sentencepiece_option, write_dataset, write_splits

EVERY = 5000  # one article of so many is used for validation, about 1,280 in total, and one for test


class OwnText(SentencePieceCorpus):
    """Your own train.txt, valid.txt and test.txt in SentencePiece units, for fairseq's language_modeling.

    The SentencePiece model is learned on train.txt and saved as OUT/bin/spm.model. Without --from, the text
    is the English documentation included in Python, with one paragraph per line and without duplicates. Of
    every topic, the first 80% of the characters are used for training, the next 10% for validation, the rest
    for test.
    """

    accepts = f"{SentencePieceCorpus.accepts} (default: the English prose inside Python)"

    def write_text(self, args, folder):
        super().write_text(args, folder) if args.source else write_splits(folder, python_docs())


class Wikipedia(SentencePieceCorpus):
    """English Wikipedia in SentencePiece units, for fairseq's language_modeling.

    The SentencePiece model is learned on two million lines of train.txt and saved as OUT/bin/spm.model. A
    line is a paragraph or a heading, and a blank line ends an article. Without --from, the text is
    Wikimedia's extract of November 2023, which is loaded with the optional Hugging Face package datasets. One
    of every 5,000 articles is used for validation and one for test.
    """

    accepts = f"{SentencePieceCorpus.accepts} (default: Wikimedia's extract)"
    options: ClassVar = sentencepiece_option(32_000)

    def write_text(self, args, folder):
        if args.source:
            return super().write_text(args, folder)
        write_dataset(self.facts, folder, split_of, paragraphs)


def python_docs() -> dict[str, list[str]]:
    """Returns {split: paragraphs} of Python's documentation; the splits share no paragraph."""
    lines, seen = {split: [] for split in SPLITS}, set()
    for _, topic in sorted(pydoc_data.topics.topics.items()):
        found = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topic)]
        found = [p for p in dict.fromkeys(found) if p and p not in seen]
        seen.update(found)
        total, done = sum(map(len, found)), 0
        for paragraph in found:
            split = "train" if done < 0.8 * total else "valid" if done < 0.9 * total else "test"
            lines[split].append(paragraph)
            done += len(paragraph)
    return lines


def split_of(i: int, articles: int) -> str:
    """Returns the split of article i of Wikipedia."""
    return {0: "valid", 1: "test"}.get(i % EVERY, "train")


def paragraphs(article: str) -> str:
    """Returns the non-blank lines of an article with normalized spaces, followed by a blank line."""
    lines = (" ".join(line.split()) for line in article.split("\n"))
    return "".join(f"{line}\n" for line in lines if line) + "\n"
