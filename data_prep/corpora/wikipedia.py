"""English Wikipedia in SentencePiece units, for fairseq's language_modeling.

The SentencePiece model is learned on two million lines of train.txt and saved as OUT/bin/spm.model. A line is
a paragraph or a heading, and a blank line ends an article. Without --from, the text is Wikimedia's extract of
November 2023, which is loaded with the optional Hugging Face package datasets. One of every 5,000 articles is
used for validation and one for test.
"""

from data_prep import hub
from data_prep.corpora.own_text import OwnText

EVERY = 5000  # one article of so many is used for validation, about 1,280 in total, and one for test


class Wikipedia(OwnText):
    """English Wikipedia from the Hugging Face Hub, or the text files in the folder given by --from."""

    accepts = "a folder with train.txt, valid.txt and test.txt in UTF-8 (default: Wikimedia's extract)"
    pieces = 32_000

    @property
    def published(self):
        return "{dataset} {name}".format(**self.facts)

    def check(self, args):
        if args.source is None and not (args.out / "text").is_dir():
            return hub.load(self.facts, "a folder with train.txt, valid.txt and test.txt")
        return super().check(args)

    def write_published(self, inputs, folder):
        hub.write_texts(inputs, self.facts, folder, split_of, paragraphs)


def split_of(i: int, articles: int) -> str:
    """Returns the split of article i."""
    return {0: "valid", 1: "test"}.get(i % EVERY, "train")


def paragraphs(article: str) -> str:
    """Returns the non-blank lines of an article with normalized spaces, followed by a blank line."""
    lines = (" ".join(line.split()) for line in article.split("\n"))
    return "".join(f"{line}\n" for line in lines if line) + "\n"
