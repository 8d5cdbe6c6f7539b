"""The user's own text, or the fairy tales of this package, in units of a tokenizer of choice."""

import json
from argparse import ArgumentTypeError
from pathlib import Path

from data_prep.binarize import SPLITS, split_files
from data_prep.corpus import Corpus, counts_text, number
from data_prep.documents import FORMATS
from data_prep.own_splits import write_documents
from data_prep.text_corpus import (
    ByteCorpus,
    BytePairCorpus,
    CharacterCorpus,
    SentencePieceCorpus,
    TextCorpus,
    TokenizerCorpus,
    copy_texts,
    sentencepiece_option,
)
from fairseq_lrpe.data.layout import read_object
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import file_exists

GRIMM = Path(__file__).parents[1] / "grimm"  # the same text for every Python, so that numbers can be compared
DOCUMENTS = "documents.json"  # numbers of documents of the splits, in OUT/text


class BytePairs(BytePairCorpus):
    task = "language_modeling"


TOKENIZERS = {
    "sentencepiece": SentencePieceCorpus,
    "words": TextCorpus,
    "characters": CharacterCorpus,
    "bytes": ByteCorpus,
    "gpt2": BytePairs,
}
"""{value of --tokenizer: corpus with these units}"""


def tokenizer(text: str) -> str | Path:
    """Parses the value of --tokenizer: a name in ``TOKENIZERS``, or the path of a tokenizer's file."""
    if text in TOKENIZERS:
        return text
    path = path_arg(text)
    if not path.is_file():
        known = ", ".join(TOKENIZERS)
        raise ArgumentTypeError(f"unknown tokenizer {text!r}: choose from {known}, or pass a tokenizer.json")
    return path


def share(text: str) -> float:
    """Parses the share of documents of a split, a number above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise ArgumentTypeError(f"expected a number above 0 and below 1, not {text!r}")
    return value


class OwnText(Corpus):
    """Your own text for fairseq's language_modeling, in SentencePiece units, words, characters, bytes or BPE.

    --from takes one file or a folder with text (.txt), JSON Lines, CSV, Parquet, or what `save_to_disk` of
    the package datasets writes; all but the last two may be compressed (.gz, .zst). A row is a document, a
    text file is one, and blank lines separate the documents of a single text file. Names of files or folders
    such as train.jsonl or validation/ determine the splits. Otherwise, documents are drawn at random for
    validation and test. The text has the non-blank lines of the documents, with single spaces between words,
    and a blank line after each document. The lines of train.txt, valid.txt and test.txt in a folder with all
    three stay as they are.

    Without --from, the text is Grimms' fairy tales in Margaret Hunt's translation of 1884, from Project
    Gutenberg, with one sentence per line: 370 kB for training and 50 kB each for validation and test.
    """

    accepts = f"a file or folder of {', '.join(FORMATS)} (default: Grimms' fairy tales)"
    options = {
        "--tokenizer": {
            "type": tokenizer,
            "default": "sentencepiece",
            "metavar": "NAME",
            "help": f"{', '.join(TOKENIZERS)}, or the path of a tokenizer.json (default: %(default)s)",
        },
        "--column": {
            "default": "text",
            "metavar": "NAME",
            "help": "column, or key of JSON objects, with the text (default: %(default)s)",
        },
        "--valid": {
            "type": share,
            "default": 0.01,
            "metavar": "SHARE",
            "help": "share of the documents that are drawn for validation (default: %(default)s)",
        },
        "--test": {
            "type": share,
            "default": 0.01,
            "metavar": "SHARE",
            "help": "share of the documents that are drawn for test (default: %(default)s)",
        },
        "--seed": number("seed of drawing (default: %(default)s)", default=1),
        **sentencepiece_option(2000),
        **BytePairCorpus.options,
    }

    def check(self, args):
        if args.valid + args.test >= 1:
            raise UserError("--valid and --test leave nothing for training: pass shares with a sum below 1")
        if args.tokenizer != "gpt2" and (args.bpe or args.bpe_types):
            raise UserError("--bpe and --bpe-types belong to --tokenizer gpt2: omit them, or use gpt2")

    def write_text(self, args, folder):
        source = args.source or GRIMM
        if has_three_texts(source):
            copy_texts(split_files(source), folder)
        else:
            shares = {"valid": args.valid, "test": args.test}
            counts = write_documents(source, folder, args.column, shares, args.seed)
            (folder / DOCUMENTS).write_text(json.dumps(counts) + "\n")

    def units(self, args) -> TextCorpus:
        """Returns the corpus that divides the text in OUT/text into units."""
        return TOKENIZERS.get(args.tokenizer, TokenizerCorpus)(self.name)

    def prepare(self, args, folder):
        self.text(args)
        self.units(args).prepare(args, folder)

    def report(self, args):
        file = args.out / "text" / DOCUMENTS
        if file.is_file():
            counts = read_object(file, lambda found: set(found) <= set(SPLITS))
            print(f"documents: {counts_text(counts)}")
        self.units(args).report(args)


def has_three_texts(source: Path) -> bool:
    """Returns whether a source is a folder with train.txt, valid.txt and test.txt."""
    return source.is_dir() and all(map(file_exists, split_files(source).values()))
