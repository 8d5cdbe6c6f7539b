"""GPT-2 byte-pair encoding in several processes, and the base class of corpora that use it."""

import hashlib
import logging
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from data_prep import fetch
from data_prep.binarize import binarize, split_files
from data_prep.corpus import Corpus
from data_prep.parallel import map_files
from fairseq_lrpe.data.layout import vocabulary_size
from fairseq_lrpe.data.line_codec import BytePairs
from fairseq_lrpe.utils.cli import path_arg
from fairseq_lrpe.utils.files import read_file, write_atomic

FACTS = fetch.SOURCES["gpt2_bpe"]
FILES = {name: {"mirrors": FACTS["mirrors"], **facts} for name, facts in FACTS["files"].items()}


class BytePairCorpus(Corpus):
    """Base class of corpora in GPT-2 BPE, with plain text in OUT/text and encoded text in OUT/SPLIT.bpe."""

    task = "masked_lm"

    def add_options(self, parser: ArgumentParser) -> None:
        text = "folder with encoder.json, vocab.bpe and dict.txt of GPT-2 BPE (default: download them)"
        parser.add_argument("--bpe", type=path_arg, metavar="FOLDER", help=text)

    def prepare(self, args, source, inputs):
        provide(args.out / "gpt2_bpe", args.bpe)
        texts = split_files(self.text(args, source, inputs))
        self.write_bin(args, source, self.encode(args, texts))

    def encode(self, args: Namespace, texts: dict[str, Path]) -> dict[str, Path]:
        """Encodes ``texts`` {split: path} and returns {split: OUT/SPLIT.bpe}; existing files are kept."""
        function = line_encoder(args.out / "gpt2_bpe")
        return map_files(function, texts, args.out, "bpe", args.workers, newline=None)

    def write_bin(self, args: Namespace, source: str, encoded: dict[str, Path], name: str = "bin") -> None:
        """Binarizes encoded files into OUT/name with GPT-2's dictionary."""
        dictionary = args.out / "gpt2_bpe" / "dict.txt"
        binarize(encoded, args.out, source, "--srcdict", dictionary, workers=args.workers, name=name)

    def vocabulary(self, data):
        size, expected = vocabulary_size(data / "dict.txt"), FACTS["vocabulary_with_mask"]
        same = "as in the papers" if size + 1 == expected else f"not the papers' {expected:,}"
        return f"{size:,} types; with the <mask> of fairseq's masked_lm {size + 1:,}, {same}"


def provide(folder: Path, source: Path | None = None) -> None:
    """Writes the published BPE files to ``folder``: verified copies from ``source``, or downloaded files."""
    if source is None:
        for name, facts in FILES.items():
            fetch.fetch(folder / name, facts)
        return
    contents = {name: published(source / name) for name in FILES}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomic(folder / name, content)


def published(path: Path) -> bytes:
    """Returns the content of a published BPE file after verifying this copy of it.

    If a dict.txt has additional madeupwords at its end, as in other fairseq releases (51,196 lines), they are
    removed.
    """
    facts = FILES[path.name]
    if path.is_file() and path.name == "dict.txt":
        content, size = read_file(path), facts["size"]
        same = hashlib.sha256(content[:size]).hexdigest() == facts["sha256"]
        if same and re.fullmatch(rb"(madeupword\d+ 0\n)*", content[size:]):
            return content[:size]
    return fetch.verified(path, path.name, facts).read_bytes()


def line_encoder(folder: Path) -> Callable[[str], str]:
    """Returns a function that encodes a line of text as space-separated BPE indices.

    Files are opened with ``newline=None``, which also splits lines at carriage returns, as in fairseq.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it logs missing speech packages on import
    import fairseq.data.encoders.gpt2_bpe_utils  # noqa: F401  imported once, before workers fork

    return BytePairs(folder).encode
