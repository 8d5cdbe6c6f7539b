"""Text in GPT-2's byte pairs, on all cores: ``python -m data_prep.gpt2_bpe TEXT ENCODED --bpe FOLDER``."""

import argparse
import hashlib
import logging
import os
import re
from pathlib import Path

from data_prep import door, fetch
from data_prep.binarise import SOURCES
from data_prep.each_line import each_line

FILES = SOURCES["gpt2_bpe"]["files"]
WORDS = 500_000  # that a process remembers


def provide(folder, given=None):
    """encoder.json, vocab.bpe and dict.txt verified in ``folder``, from the folder ``given`` or fetched."""
    for name, facts in FILES.items():
        if given is None:
            fetch.fetch(folder / name, facts["mirrors"], facts["size"], facts["sha256"])
        else:
            content = published(given / name, facts)
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{name}.part"
            part.write_bytes(content)
            os.replace(part, folder / name)


def published(path, facts):
    """The bytes of the published file of which ``path`` is a copy; FetchError if it is none.

    A dict.txt is also taken with more madeupwords at its end, which other releases of fairseq's models have
    (51,196 lines): they are cut off, the types before them are the same.
    """
    if path.is_file() and path.name == "dict.txt":
        head, rest = (content := path.read_bytes())[: facts["size"]], content[facts["size"] :]
        if hashlib.sha256(head).hexdigest() == facts["sha256"] and re.fullmatch(
            rb"(madeupword\d+ 0\n)*", rest
        ):
            return head
    return fetch.verified(path, path.name, facts["size"], facts["sha256"]).read_bytes()


def encode(source, target, folder, workers):
    """``target``: the lines of ``source`` as byte pairs' numbers, blank ones blank; it appears whole.

    The same bytes as fairseq's examples/roberta writes with --keep-empty, whatever the number of ``workers``.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import tells of packages for speech
    import fairseq.data.encoders.gpt2_bpe_utils  # noqa: F401  here, once: each process has it from this one

    files = str(folder / "encoder.json"), str(folder / "vocab.bpe")
    each_line(_Encoder(*files), source, target, workers, newline=None)


class _Encoder:
    """A line as byte pairs' numbers, without the blanks at its ends."""

    def __init__(self, *files):
        self.files, self.encoder = files, None

    def __call__(self, line):
        from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

        self.encoder = self.encoder or get_encoder(*self.files)
        if len(self.encoder.cache) > WORDS:
            self.encoder.cache.clear()  # it has no bound of its own, and there are many processes
        return " ".join(map(str, self.encoder.encode(line.strip())))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="gpt2_bpe", description=__doc__)
    parser.add_argument("text", type=Path, metavar="TEXT")
    parser.add_argument("encoded", type=Path, metavar="ENCODED")
    parser.add_argument(
        "--bpe", type=Path, required=True, metavar="FOLDER", help="with encoder.json and vocab.bpe"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: %(default)s")
    args = parser.parse_args(arguments)
    with door.one_sentence("gpt2_bpe"):
        door.check_workers(args.workers)
        for name in ("encoder.json", "vocab.bpe"):
            published(args.bpe / name, FILES[name])
        door.check_text(args.text)
        encode(args.text, args.encoded, args.bpe, args.workers)


if __name__ == "__main__":
    main()
