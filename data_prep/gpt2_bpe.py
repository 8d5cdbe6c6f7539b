"""Text in GPT-2's byte pairs, on all cores, and what corpora in them have in common."""

import hashlib
import logging
import re
from argparse import ArgumentParser, Namespace
from functools import cache, partial
from pathlib import Path

from data_prep import fetch
from data_prep.binarise import binarise, texts_in
from data_prep.corpus import Corpus
from data_prep.each_line import each_line
from fairseq_lrpe.files import write_whole
from fairseq_lrpe.layouts import vocabulary_size
from fairseq_lrpe.programs import a_path

FACTS = fetch.SOURCES["gpt2_bpe"]
FILES = {name: {"mirrors": FACTS["mirrors"], **facts} for name, facts in FACTS["files"].items()}
WORDS = 500_000  # that a process remembers


class InBytePairs(Corpus):
    """A corpus in byte pairs for masked_lm: its text in OUT/text, encoded in OUT, and fairseq's binaries."""

    task = "masked_lm"

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--bpe",
            type=a_path,
            metavar="FOLDER",
            help="encoder.json, vocab.bpe and dict.txt of GPT-2's byte pairs (default: download them)",
        )

    def prepare(self, args, source, found):
        provide(args.out / "gpt2_bpe", args.bpe)
        texts = texts_in(self.text(args, source, found))
        self.write_bin(args, source, self.encode(args, texts))

    def encode(self, args: Namespace, texts: dict[str, Path]) -> dict[str, Path]:
        """Returns {split: OUT/split.bpe} of ``texts``; those of an earlier run are kept."""
        encoded = {split: args.out / f"{split}.bpe" for split in texts}
        for split, path in encoded.items():
            if not path.exists():
                encode(texts[split], path, args.out / "gpt2_bpe", args.workers)
        return encoded

    def write_bin(self, args: Namespace, source: str, encoded: dict[str, Path], name: str = "bin") -> None:
        """Writes OUT/name of byte pairs, with GPT-2's dictionary; it appears whole or not at all."""
        dictionary = args.out / "gpt2_bpe" / "dict.txt"
        binarise(encoded, args.out, source, "--srcdict", dictionary, workers=args.workers, name=name)

    def vocabulary(self, data):
        size, expected = vocabulary_size(data / "dict.txt"), FACTS["vocabulary_with_mask"]
        same = "as in the papers" if size + 1 == expected else f"not the papers' {expected:,}"
        return f"{size:,} types; with the <mask> of fairseq's masked_lm {size + 1:,}, {same}"


def provide(folder: Path, given: Path | None = None) -> None:
    """Puts the published files, verified, into ``folder``, from the folder ``given`` or fetched."""
    if given is None:
        for name, facts in FILES.items():
            fetch.fetch(folder / name, facts)
        return
    contents = {name: published(given / name) for name in FILES}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_whole(folder / name, content)


def published(path: Path) -> bytes:
    """Returns the content of the published file of which ``path`` is a copy; FetchError if it is none.

    A dict.txt is also taken with more madeupwords at its end, which other releases of fairseq's models have
    (51,196 lines): they are cut off, the types before them are the same.
    """
    facts = FILES[path.name]
    if path.is_file() and path.name == "dict.txt":
        content, size = path.read_bytes(), facts["size"]
        same = hashlib.sha256(content[:size]).hexdigest() == facts["sha256"]
        if same and re.fullmatch(rb"(madeupword\d+ 0\n)*", content[size:]):
            return content[:size]
    return fetch.verified(path, path.name, facts).read_bytes()


def encode(source: Path, target: Path, folder: Path, workers: int) -> None:
    """Writes the lines of ``source`` as byte pairs' numbers, blank ones blank, to ``target``, whole.

    The same bytes as fairseq's examples/roberta writes with --keep-empty, whatever the number of ``workers``.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import tells of packages for speech
    import fairseq.data.encoders.gpt2_bpe_utils  # noqa: F401  here, once: each process has it from this one

    each_line(partial(_numbers, folder), source, target, workers, newline=None)


@cache
def _encoder(folder):
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    return get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))


def _numbers(folder, line):
    """Returns a line as byte pairs' numbers, without the blanks at its ends."""
    encoder = _encoder(folder)
    if len(encoder.cache) > WORDS:
        encoder.cache.clear()  # it has no bound of its own, and there are many processes
    return " ".join(map(str, encoder.encode(line.strip())))
