"""English Wikipedia in SentencePiece's pieces -> fairseq's binaries.

The pieces are learned on two million lines of train.txt; OUT/bin/spm.model has them. A line is a paragraph
or a heading, and a blank line ends an article. Without --from it is Wikimedia's own extract of November 2023,
which comes through the Hugging Face package datasets, installed apart; of 5,000 articles one is for
validation and one for test.
"""

from data_prep import hub
from data_prep.fetch import SOURCES
from data_prep.own_text import OwnText

FACTS = SOURCES["wikipedia"]
INSTEAD = "a folder with train.txt, valid.txt and test.txt"
EVERY = 5000  # articles: about 1,280 for validation


class Wikipedia(OwnText):
    """Wikipedia through datasets, or a person's extract of it."""

    published = f"{FACTS['dataset']} {FACTS['name']}"
    accepts = f"train.txt, valid.txt and test.txt, UTF-8 (default: {published}, through the package datasets)"
    pieces = 32_000

    def check(self, args):
        if args.source is None and not (args.out / "text").is_dir():
            hub.check_package(FACTS, INSTEAD)
        return super().check(args)

    def write_published(self, folder):
        hub.write_texts(FACTS, folder, INSTEAD, split_of, paragraphs)


def split_of(i: int, articles: int) -> str:
    """Returns which text the i-th article is for."""
    return {0: "valid", 1: "test"}.get(i % EVERY, "train")


def paragraphs(article: str) -> str:
    """Returns the lines of an article that are not blank, and a blank one."""
    lines = (" ".join(line.split()) for line in article.splitlines())
    return "".join(f"{line}\n" for line in lines if line) + "\n"
