"""Makes a corpus for fairseq, or lists all of them: ``bash data_prep/prepare.sh [NAME [OPTION ...]]``."""

import sys
from importlib import import_module
from typing import NamedTuple

from rich.table import Table

from fairseq_lrpe.files import REPOSITORY
from fairseq_lrpe.programs import show_wide

USAGE = "bash data_prep/prepare.sh NAME makes a corpus, and says with --help how; these are there:"


class Row(NamedTuple):
    """A corpus's module and class, what it is, where it comes from, and where it is written."""

    made_by: str
    what: str
    origin: str
    folder: str = "data/{name}/bin"


CORPORA = {
    "wikitext103": Row("wikitext:WikiText103", "WikiText-103 at word level", "downloaded"),
    "wikitext103_bpe": Row("wikitext:RawBytePairs", "raw WikiText-103 in GPT-2's byte pairs", "downloaded"),
    "wikitext_mini": Row("wikitext:Mini", "a small corpus out of WikiText-103", "downloaded"),
    "wikitext_mini_chars": Row("wikitext:MiniCharacters", "the same in characters", "downloaded"),
    "wikitext_mini_bpe": Row("wikitext:MiniBytePairs", "the same in GPT-2's byte pairs", "downloaded"),
    "books": Row("books:Books", "BookCorpus or other books in GPT-2's byte pairs", "by datasets"),
    "wikibook": Row("wikibook:WikiBook", "Wikipedia and BookCorpus, the same way", "downloaded, 22 GB"),
    "wikipedia": Row("wikipedia:Wikipedia", "English Wikipedia in SentencePiece's pieces", "by datasets"),
    "glue": Row("glue:Glue", "GLUE's tasks, the same way", "downloaded", "data/glue/TASK/bin"),
    "glue_words": Row("glue_words:GlueWords", "GLUE in words", "downloaded", "data/glue_words/TASK/bin"),
    "imdb": Row("imdb:ByWords", "IMDB's reviews in words", "downloaded"),
    "snli": Row("nli:Snli", "SNLI's pairs of sentences in words", "downloaded"),
    "sentences": Row("sentences:Sentences", "your own labelled texts in words", "needs --from"),
    "squad": Row("questions:Questions", "SQuAD's questions in BERT's word pieces", "downloaded"),
    "cmrc2018": Row("questions:Questions", "CMRC 2018's, which are Chinese, likewise", "downloaded"),
    "lra_text": Row("imdb:ByBytes", "Long-Range Arena's Text, IMDB by bytes", "downloaded"),
    "lra_image": Row("lra_image:Pictures", "Long-Range Arena's Image, CIFAR-10 in grey", "downloaded"),
    "lra_retrieval": Row("lra_retrieval:Papers", "Long-Range Arena's Retrieval, by bytes", "needs --from"),
    "lra_retrieval_mini": Row("lra_retrieval:Pieces", "the same of pieces of WikiText", "needs --from"),
    "imagenet": Row("images:ImageNet", "ImageNet's JPEGs, or pictures of your own", "needs --from"),
    "cifar10": Row("images:Tree", "CIFAR-10 or other pictures in class folders", "needs --from"),
    "listops": Row("listops:ListOps", "Long-Range Arena's ListOps", "generated"),
    "pathfinder": Row("pathfinder:Pathfinder", "Long-Range Arena's Pathfinder", "generated"),
    "wmt14_en_de": Row("translation:Translation", "English and German of WMT 2014", "downloaded"),
    "multi30k": Row("translation:Translation", "English and German captions of pictures", "needs --from"),
    "text": Row("own_text:OwnText", "your own text in SentencePiece's pieces", "in Python, or --from"),
}


def state(folder: str) -> str:
    """Returns whether the corpus of this folder is prepared, and of one that has tasks, which are."""
    found = sorted(REPOSITORY.glob(folder.replace("TASK", "*")))
    if not found:
        return "-"
    return f"prepared: {' '.join(path.parent.name for path in found)}" if "TASK" in folder else "prepared"


def listing() -> Table:
    """Returns the table of all corpora."""
    table = Table("name", "what", "from", "folder", "state", title=USAGE, title_justify="left")
    for name, row in CORPORA.items():
        folder = row.folder.format(name=name)
        table.add_row(name, row.what, row.origin, folder, state(folder))
    return table


def main(arguments: list[str] | None = None) -> None:
    """Prints the list of corpora, or makes the one that is named first."""
    name, *options = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        show_wide(listing())
    elif name not in CORPORA:
        sys.exit(f"prepare: there is no corpus {name}: choose from {', '.join(CORPORA)}")
    else:
        from data_prep.corpus import prepare

        module, kind = CORPORA[name].made_by.split(":")
        prepare(getattr(import_module(f"data_prep.{module}"), kind)(name), options)


if __name__ == "__main__":
    main()
