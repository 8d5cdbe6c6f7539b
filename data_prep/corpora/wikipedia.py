"""English Wikipedia in SentencePiece units, for fairseq's language_modeling.

The model is learned on two million lines of train.txt and saved as OUT/bin/spm.model. A line is a paragraph
or a heading, and a blank line ends an article. The default is Wikimedia's extract of November 2023, loaded
with the optional Hugging Face package datasets; of 5,000 articles, one is for validation and one for test.
"""

from data_prep import hub
from data_prep.corpora.own_text import OwnText

EVERY = 5000  # articles: about 1,280 for validation


class Wikipedia(OwnText):
    """Wikipedia from the hub, or the user's own extract."""

    accepts = "train.txt, valid.txt and test.txt, UTF-8 (default: Wikipedia, through the package datasets)"
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
    """Returns the split of the i-th article."""
    return {0: "valid", 1: "test"}.get(i % EVERY, "train")


def paragraphs(article: str) -> str:
    """Returns the non-blank lines of an article, followed by a blank line."""
    lines = (" ".join(line.split()) for line in article.splitlines())
    return "".join(f"{line}\n" for line in lines if line) + "\n"
